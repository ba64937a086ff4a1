package daemon

import (
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"

	"wherry.dev/internal/apiserver"
	"wherry.dev/internal/controller/manager"
	kubeletconfig "wherry.dev/internal/kubelet/config"
)

// A whole node passes flags on to its API server, but not those that it sets itself.
func TestFlagsOfTheAPIServer(t *testing.T) {
	c := apiserver.DefaultConfig()
	fs := pflag.NewFlagSet("", pflag.ContinueOnError)
	c.AddFlags(fs)
	set := func(args ...string) error { return setFlags(fs, "it", args, map[string]string{"secure-port": "why"}) }
	err := set("audit-log-path=/x", "--profiling=false", "enable-aggregator-routing", "tls-san=a", "tls-san=b")
	if err != nil || c.Audit.LogOptions.Path != "/x" || c.Profiling || !c.AggregatorRouting || !slices.Equal(c.ServingNames, []string{"a", "b"}) {
		t.Errorf("%v, %+v", err, c)
	}
	for arg, want := range map[string]string{
		"secure-port=1": "secure-port cannot be set here: why", "nothing=1": `"nothing" is not a flag of it`,
		"audit-log-path": "audit-log-path needs a value", "profiling=maybe": "profiling", "": `"" is not a flag`,
	} {
		if err := set(arg); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", arg, err, want)
		}
	}
}

func TestFlagsOfControllers(t *testing.T) {
	const hpa = "horizontal-pod-autoscaler-"
	o, err := controllerOptions([]string{
		hpa + "sync-period=1s", hpa + "downscale-stabilization=0s", hpa + "tolerance=0.2", hpa + "cpu-initialization-period=2s",
		hpa + "initial-readiness-delay=3s", "--node-monitor-grace-period=4s", "node-startup-grace-period=5s",
		"terminated-pod-gc-threshold=0", "cluster-signing-duration=6h", "controllers=*,-job-controller",
	})
	want := manager.DefaultOptions()
	want.Autoscaler.Period, want.Autoscaler.Window, want.Autoscaler.Tolerance = time.Second, 0, 0.2
	want.Autoscaler.CPUInitial, want.Autoscaler.ReadinessDelay = 2*time.Second, 3*time.Second
	want.Nodes.GracePeriod, want.Nodes.StartupGrace = 4*time.Second, 5*time.Second
	want.TerminatedPods, want.SigningDuration = 0, 6*time.Hour
	want.Controllers = []string{"*", "-job-controller"}
	if err != nil || !reflect.DeepEqual(o, want) {
		t.Errorf("%v, %+v, want %+v", err, o, want)
	}
	if o, err := controllerOptions(nil); err != nil || !reflect.DeepEqual(o, manager.DefaultOptions()) {
		t.Errorf("%v, %+v", err, o)
	}
	for arg, want := range map[string]string{
		"leader-elect=false":            `"leader-elect" is not a flag of the controllers of a node, which are: cluster-signing-duration, controllers, `,
		"controllers=*,-job":            `--controllers: "job" is not in the list of known controllers: `,
		"node-monitor-grace-period=0s":  "--node-monitor-grace-period must be greater than 0, not 0s",
		hpa + "sync-period=-1s":         "--" + hpa + "sync-period must be greater than 0, not -1s",
		hpa + "tolerance=-0.1":          "--" + hpa + "tolerance must not be negative: -0.1",
		hpa + "tolerance=NaN":           "--" + hpa + "tolerance must not be negative: NaN",
		"cluster-signing-duration=1":    "missing unit in duration",
		"node-startup-grace-period=-1s": "--node-startup-grace-period must not be negative: -1s",
	} {
		if _, err := controllerOptions([]string{arg}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", arg, err, want)
		}
	}
}

// TestKubeletArgs are checked before anything is made, and win over what the node has chosen.
func TestKubeletArgs(t *testing.T) {
	for want, arg := range map[string]string{
		"":                              "system-reserved=cpu=500m,memory=1Gi",
		`"fast" is not a flag`:          "fast=1",
		"port cannot be set here":       "--port=1",
		"pods-per-core needs a value":   "pods-per-core",
		"unknown policy: \"fast\"":      "cpu-manager-policy=fast",
		"is not a quantity":             "kube-reserved=cpu=many",
		"want more than zero":           "reserved-memory=0:memory=0",
		"this option needs the feature": "cpu-manager-policy-options=align-by-socket=true",
	} {
		args := []string{arg}
		if strings.HasPrefix(arg, "cpu-manager-policy-options") {
			args = append(args, "cpu-manager-policy=static")
		}
		if err := checkKubeletArgs(args); want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: %v, want %q", arg, err, want)
		}
	}
	c := kubeletconfig.Default()
	c.EvictionHard = map[string]string{"nodefs.available": "5%"}
	if err := setKubeletArgs(&c, []string{"eviction-hard=memory.available<1Gi"}); err != nil || len(c.EvictionHard) != 1 || c.EvictionHard["memory.available"] != "1Gi" {
		t.Errorf("%v, %v", c.EvictionHard, err)
	}
	flags := pflag.NewFlagSet("", pflag.ContinueOnError)
	c.AddFlags(flags)
	for name := range ownKubeletFlags {
		if flags.Lookup(name) == nil {
			t.Errorf("--%s is not a flag of the kubelet", name)
		}
	}
}
