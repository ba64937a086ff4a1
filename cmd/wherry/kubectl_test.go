package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// saveKubeconfig writes a kubeconfig with one context.
func saveKubeconfig(t *testing.T, path, context string) {
	t.Helper()
	cfg := clientcmdapi.NewConfig()
	cfg.Clusters[context] = &clientcmdapi.Cluster{Server: "https://" + context}
	cfg.Contexts[context] = &clientcmdapi.Context{Cluster: context}
	cfg.CurrentContext = context
	if err := clientcmd.WriteToFile(*cfg, path); err != nil {
		t.Fatal(err)
	}
}

func TestKubectlNeverWritesTheInstancesKubeconfig(t *testing.T) {
	home, data := t.TempDir(), t.TempDir()
	mine, instance := filepath.Join(home, ".kube", "config"), filepath.Join(data, "kubeconfig")
	saveKubeconfig(t, instance, "instance")
	before, err := os.ReadFile(instance)
	if err != nil {
		t.Fatal(err)
	}
	kubectl := func(args ...string) string {
		t.Helper()
		out, err := wherry(t, []string{"HOME=" + home, "KUBECONFIG="}, append([]string{"--data-dir", data, "kubectl"}, args...)...).CombinedOutput()
		if err != nil {
			t.Errorf("kubectl %s: %v: %s", strings.Join(args, " "), err, out)
		}
		return strings.TrimSpace(string(out))
	}
	if got := kubectl("config", "current-context"); got != "instance" {
		t.Errorf("the user has none: %q", got)
	}
	kubectl("config", "set-cluster", "c", "--server=https://c")
	kubectl("--v", "0", "config", "set-context", "c", "--cluster=c")
	kubectl("config", "use-context", "c")
	if after, err := os.ReadFile(instance); err != nil || string(after) != string(before) {
		t.Errorf("the instance's file was written: %v\n%s", err, after)
	}
	cfg, err := clientcmd.LoadFromFile(mine)
	if err != nil || cfg.CurrentContext != "c" || cfg.Clusters["c"] == nil || len(cfg.Contexts) != 1 {
		t.Errorf("the user's own: %v, %+v", err, cfg)
	}
	if got := kubectl("config", "current-context"); got != "instance" {
		t.Errorf("--data-dir names the instance: %q", got)
	}
}

func TestWhoseKubeconfigIsRead(t *testing.T) {
	data := t.TempDir()
	instance := filepath.Join(data, "kubeconfig")
	saveKubeconfig(t, instance, "instance")
	home := filepath.Join(t.TempDir(), "config")
	defer func(was string) { clientcmd.RecommendedHomeFile = was }(clientcmd.RecommendedHomeFile)
	clientcmd.RecommendedHomeFile = home
	for name, tc := range map[string]struct {
		args           []string
		flag, variable string
		env            string
		want           string
	}{
		"named by a flag":              {[]string{"kubectl", "get", "pods"}, data, "", "", instance},
		"named by a variable":          {[]string{"kubectl", "get", "pods"}, "", data, "", instance},
		"a pod of that name":           {[]string{"kubectl", "get", "pod", "config"}, data, "", "", instance},
		"the user's variable":          {[]string{"kubectl", "get", "pods"}, data, "", "/mine", "/mine"},
		"to write":                     {[]string{"kubectl", "-n", "ns", "config", "set-context", "x"}, data, "", "", ""},
		"to write, with flags between": {[]string{"kubectl", "config", "--v=1", "unset", "x"}, data, "", "", ""},
		"to look":                      {[]string{"kubectl", "config", "view", "--raw"}, data, "", "", instance},
		"of nothing":                   {[]string{"kubectl", "get", "pods"}, home, "", "", ""},
	} {
		t.Setenv("WHERRY_DATA_DIR", tc.variable)
		t.Setenv("KUBECONFIG", tc.env)
		if err := lendKubeconfig(tc.args, tc.flag); err != nil {
			t.Fatal(err)
		}
		if got := os.Getenv("KUBECONFIG"); got != tc.want {
			t.Errorf("%s: %q, want %q", name, got, tc.want)
		}
	}
	// no instance was named: the user's own file comes first
	saveKubeconfig(t, home, "mine")
	t.Setenv("WHERRY_DATA_DIR", "")
	t.Setenv("KUBECONFIG", "")
	if err := lendKubeconfig([]string{"kubectl", "get", "pods"}, ""); err != nil || os.Getenv("KUBECONFIG") != "" {
		t.Errorf("%v, %q", err, os.Getenv("KUBECONFIG"))
	}
}
