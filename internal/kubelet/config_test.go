package kubelet

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/pflag"
)

func parse(t *testing.T, file string, args ...string) (Config, error) {
	t.Helper()
	cfg := DefaultConfig()
	fs := pflag.NewFlagSet("kubelet", pflag.ContinueOnError)
	cfg.AddFlags(fs)
	if file != "" {
		path := filepath.Join(t.TempDir(), "kubelet.yaml")
		if err := os.WriteFile(path, []byte(file), 0o600); err != nil {
			t.Fatal(err)
		}
		args = append(args, "--config", path)
	}
	if err := fs.Parse(args); err != nil {
		return cfg, err
	}
	return cfg, cfg.LoadFiles(fs)
}

const head = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n"

func TestFlagsWinOverTheFile(t *testing.T) {
	cfg, err := parse(t, head+"maxPods: 7\nport: 1\nclusterDNS: [10.0.0.1]\nhealthzPort: 5\nsystemReserved: {cpu: 1}\nevictionHard: {memory.available: 5%}\n",
		"--port=2", "--cluster-dns=10.0.0.2", "--system-reserved=cpu=2", "--register-with-taints=a=b:NoSchedule,c:NoExecute", "--cpu-manager-policy=static")
	if err != nil {
		t.Fatal(err)
	}
	if cfg.MaxPods != 7 || *cfg.HealthzPort != 5 || cfg.EvictionHard["memory.available"] != "5%" {
		t.Errorf("the file's values are lost: %+v", cfg)
	}
	if cfg.Port != 2 || len(cfg.ClusterDNS) != 1 || cfg.ClusterDNS[0] != "10.0.0.2" || cfg.SystemReserved["cpu"] != "2" {
		t.Errorf("the flags' values are lost: %d %v %v", cfg.Port, cfg.ClusterDNS, cfg.SystemReserved)
	}
	if len(cfg.RegisterWithTaints) != 2 || cfg.RegisterWithTaints[1].Key != "c" {
		t.Errorf("taints: %+v", cfg.RegisterWithTaints)
	}
	if len(cfg.Warnings) != 1 || !strings.Contains(cfg.Warnings[0], "cpu-manager-policy") {
		t.Errorf("warnings: %v", cfg.Warnings)
	}
}

func TestBadConfigurationIsRefused(t *testing.T) {
	for name, tc := range map[string]struct{ file, flag, want string }{
		"kind":       {"kind: Pod\napiVersion: v1\n", "", "KubeletConfiguration"},
		"field":      {head + "maxPodz: 7\n", "", "maxPodz"},
		"yaml":       {"{", "", "yaml"},
		"taint":      {"", "--register-with-taints=a", "key=value:effect"},
		"dns":        {"", "--cluster-dns=x", "--cluster-dns"},
		"node name":  {"", "--hostname-override=A_B", "node name"},
		"quantity":   {"", "--kube-reserved=cpu=x", "--kube-reserved"},
		"address":    {"", "--address=x", "--address"},
		"relative":   {"", "--pod-manifest-path=x", "absolute"},
		"percentage": {"", "--eviction-hard=memory.available<200%", "percentage"},
	} {
		t.Run(name, func(t *testing.T) {
			var args []string
			if tc.flag != "" {
				args = append(args, tc.flag)
			}
			cfg, err := parse(t, tc.file, args...)
			if err == nil {
				err = cfg.complete()
			}
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got %v, want something about %q", err, tc.want)
			}
		})
	}
}
