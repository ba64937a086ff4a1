package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"helm.sh/helm/v4/pkg/action"
	"helm.sh/helm/v4/pkg/chart"
	"helm.sh/helm/v4/pkg/chart/loader"
	"helm.sh/helm/v4/pkg/kube"
	"helm.sh/helm/v4/pkg/release"
	"k8s.io/cli-runtime/pkg/genericclioptions"

	"wherry.dev/test/images"
)

// helm is what the helm command does, through its library, in one namespace.
type helm struct {
	t   *testing.T
	ns  string
	cfg *action.Configuration
}

// helm returns helm for a namespace of this instance.
func (c *cluster) helm(t *testing.T, ns string) helm {
	t.Helper()
	flags := genericclioptions.NewConfigFlags(true)
	*flags.KubeConfig, *flags.Namespace, *flags.CacheDir = filepath.Join(c.data, "kubeconfig"), ns, t.TempDir()
	cfg := action.NewConfiguration()
	if err := cfg.Init(flags, ns, "secret"); err != nil {
		t.Fatal(err)
	}
	return helm{t: t, ns: ns, cfg: cfg}
}

type values = map[string]any

// install is helm install --create-namespace --wait --wait-for-jobs.
func (h helm) install(name string, chart chart.Charter) error {
	do := action.NewInstall(h.cfg)
	do.ReleaseName, do.Namespace, do.CreateNamespace = name, h.ns, true
	do.WaitStrategy, do.WaitForJobs, do.Timeout = kube.StatusWatcherStrategy, true, patience
	_, err := do.RunWithContext(h.t.Context(), chart, nil)
	return err
}

// upgrade is helm upgrade --wait --rollback-on-failure.
func (h helm) upgrade(name string, chart chart.Charter, set values) error {
	do := action.NewUpgrade(h.cfg)
	do.Namespace, do.WaitStrategy, do.Timeout, do.RollbackOnFailure = h.ns, kube.StatusWatcherStrategy, patience, true
	_, err := do.RunWithContext(h.t.Context(), name, chart, set)
	return err
}

// rollback is helm rollback --wait.
func (h helm) rollback(name string, revision int) error {
	do := action.NewRollback(h.cfg)
	do.Version, do.WaitStrategy, do.Timeout = revision, kube.StatusWatcherStrategy, patience
	return do.Run(name)
}

// test is helm test.
func (h helm) test(name string) error {
	do := action.NewReleaseTesting(h.cfg)
	do.Namespace, do.Timeout = h.ns, patience
	_, shutdown, err := do.Run(name)
	if err != nil {
		return err
	}
	return shutdown()
}

// uninstall is helm uninstall --wait.
func (h helm) uninstall(name string) error {
	do := action.NewUninstall(h.cfg)
	do.WaitStrategy, do.Timeout = kube.StatusWatcherStrategy, patience
	_, err := do.Run(name)
	return err
}

// history is helm history: the status of each revision.
func (h helm) history(name string) string {
	h.t.Helper()
	all, err := action.NewHistory(h.cfg).Run(name)
	if err != nil {
		h.t.Fatal(err)
	}
	out := make([]string, len(all))
	for _, r := range all {
		got, err := release.NewAccessor(r)
		if err != nil {
			h.t.Fatal(err)
		}
		out[got.Version()-1] = fmt.Sprint(got.Version(), " ", got.Status())
	}
	return strings.Join(out, ", ")
}

// folder writes files into a new folder.
func folder(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// A chart's life as its users know it: install, test, upgrade, a failed upgrade that takes itself back,
// rollback, uninstall. Each waits until what it has made is there, or gone.
func TestHelm(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.addImage("busybox.tar", images.SaveBusybox)
	c.up()
	shop, err := loader.Load(folder(t, shopChart))
	if err != nil {
		t.Fatal(err)
	}
	h := c.helm(t, "market")
	does := func(what string, err error) {
		t.Helper()
		if err != nil {
			t.Fatalf("%s: %v\n%s", what, err, c.kubectl("get", "all,events", "-n", "market"))
		}
	}

	does("install", h.install("shop", shop))
	c.sells("hello, says release 1\n", "hook of release 1\n")
	does("test", h.test("shop"))
	for who, want := range map[string]string{"get": "yes", "delete": "no"} {
		got, err := c.try("kubectl", "auth", "can-i", who, "configmap/shop", "-n", "market", "--as", "system:serviceaccount:market:shop")
		if strings.TrimSpace(got) != want {
			t.Errorf("may the chart's account %s its config map? %q, %v", who, got, err)
		}
	}

	does("upgrade", h.upgrade("shop", shop, values{"greeting": "welcome"}))
	c.sells("welcome, says release 2\n", "hook of release 2\n")
	does("test", h.test("shop"))

	if err := h.upgrade("shop", shop, values{"greeting": "goodbye", "hook": "false"}); err == nil || !strings.Contains(err.Error(), "post-upgrade hooks failed") {
		t.Errorf("an upgrade whose hook fails: %v", err)
	}
	c.sells("welcome, says release 2\n", "hook of release 3\n")
	does("rollback", h.rollback("shop", 1))
	c.sells("hello, says release 1\n", "hook of release 3\n")
	if got, want := h.history("shop"), "1 superseded, 2 superseded, 3 failed, 4 superseded, 5 deployed"; got != want {
		t.Errorf("history: %s, want %s", got, want)
	}

	does("uninstall", h.uninstall("shop"))
	c.kubectl("delete", "job", "shop-hook", "-n", "market") // helm leaves its hooks' objects
	c.until("nothing is left", func() bool {
		return c.kubectl("get", "all,configmap,secret,serviceaccount,role,rolebinding,ingress,networkpolicy,poddisruptionbudget,endpointslice,controllerrevision",
			"-n", "market", "-o", "name") == "configmap/kube-root-ca.crt\nserviceaccount/default\n"
	})
}

// sells waits until the chart's web servers and its last hook say what they should, and all of it works.
func (c *cluster) sells(answer, hook string) {
	c.t.Helper()
	c.prints("^"+answer+"$", "get", "--raw", "/api/v1/namespaces/market/services/http:shop:80/proxy/")
	c.prints("^"+hook+"$", "logs", "job/shop-hook", "-n", "market")
	c.kubectl("wait", "statefulset/shop-store", "-n", "market", "--for", "jsonpath={.status.readyReplicas}=2", "--timeout", fmt.Sprint(patience))
	c.kubectl("wait", "hpa/shop", "-n", "market", "--for", "condition=ScalingActive", "--timeout", fmt.Sprint(patience))
	c.kubectl("wait", "deployment/shop", "-n", "market", "--for", "jsonpath={.status.readyReplicas}=2", "--timeout", fmt.Sprint(patience))
}
