package config

import (
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"
	"k8s.io/client-go/rest"
	kubeletconfig "k8s.io/kubelet/config/v1beta1"
)

func parse(t *testing.T, file string, args ...string) (Config, error) {
	t.Helper()
	cfg := Default()
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
	cfg, err := parse(t, head+"maxPods: 7\nport: 1\nclusterDNS: [10.0.0.1]\nhealthzPort: 5\nsystemReserved: {cpu: \"1\"}\nevictionHard: {memory.available: 5%}\nfeatureGates: {A: true, B: true}\n",
		"--port=2", "--cluster-dns=10.0.0.2", "--system-reserved=cpu=2", "--register-with-taints=a=b:NoSchedule,c:NoExecute", "--hairpin-mode=none",
		"--node-labels=a=b,c=d", "--feature-gates=B=false", "--runtime-request-timeout=1m", "--anonymous-auth", "--lock-file=x", "--v=3", "--logging-format=json")
	if err != nil {
		t.Fatal(err)
	}
	if cfg.MaxPods != 7 || *cfg.HealthzPort != 5 {
		t.Errorf("the file's values are lost: %+v", cfg)
	}
	if len(cfg.EvictionHard) != 1 || cfg.EvictionHard["memory.available"] != "5%" {
		t.Errorf("the defaults are not replaced as a whole: %v", cfg.EvictionHard)
	}
	if cfg.Port != 2 || len(cfg.ClusterDNS) != 1 || cfg.ClusterDNS[0] != "10.0.0.2" || cfg.SystemReserved["cpu"] != "2" ||
		cfg.NodeLabels["c"] != "d" || cfg.RuntimeRequestTimeout.Duration != time.Minute || !*cfg.Authentication.Anonymous.Enabled {
		t.Errorf("the flags' values are lost: %d %v %v %v", cfg.Port, cfg.ClusterDNS, cfg.SystemReserved, cfg.NodeLabels)
	}
	if cfg.Logging.Verbosity != 3 || cfg.Logging.Format != "json" {
		t.Errorf("logging: %+v", cfg.Logging)
	}
	if !cfg.FeatureGates["A"] || cfg.FeatureGates["B"] {
		t.Errorf("gates: %v", cfg.FeatureGates)
	}
	if len(cfg.RegisterWithTaints) != 2 || cfg.RegisterWithTaints[1].Key != "c" {
		t.Errorf("taints: %+v", cfg.RegisterWithTaints)
	}
	warnings, err := cfg.Warnings()
	if err != nil || len(warnings) != 3 || !strings.Contains(warnings[0], "--lock-file") ||
		!strings.Contains(warnings[1], "hairpinMode (--hairpin-mode)") || !strings.Contains(warnings[2], "A, B") {
		t.Errorf("warnings: %q, %v", warnings, err)
	}
}

// TestReservedMemory may be given several times, and replaces what the file says.
func TestReservedMemory(t *testing.T) {
	const file = head + "reservedMemory: [{numaNode: 3, limits: {memory: 9Gi}}]\n"
	cfg, err := parse(t, file, "--reserved-memory=0:memory=1Gi,hugepages-2Mi=64Mi", "--reserved-memory=1:memory=512Mi;2:memory=1Gi")
	if err != nil || (&reservedMemory{to: &cfg.ReservedMemory}).String() != "0:hugepages-2Mi=64Mi,memory=1Gi;1:memory=512Mi;2:memory=1Gi" {
		t.Errorf("%+v, %v", cfg.ReservedMemory, err)
	}
	if cfg, err := parse(t, file); err != nil || cfg.ReservedMemory[0].NumaNode != 3 {
		t.Errorf("%+v, %v", cfg.ReservedMemory, err)
	}
	for value, want := range map[string]string{
		"memory=1Gi":                "want NODE:RESOURCE=QUANTITY",
		"-1:memory=1Gi":             "want NODE:RESOURCE=QUANTITY",
		"0:memory":                  "want RESOURCE=QUANTITY",
		"0:memory=many":             "want RESOURCE=QUANTITY",
		"0:memory=1Gi,memory=2Gi":   "memory is there twice",
		"0:memory=1Gi;0:memory=2Gi": "NUMA node 0: memory: it is there twice",
		"0:cpu=1":                   "only memory and hugepages-<size> can be reserved",
	} {
		cfg, err := parse(t, head, "--reserved-memory="+value)
		if err == nil {
			err = cfg.validate()
		}
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", value, err, want)
		}
	}
}

func TestDefaultsWarnOfNothing(t *testing.T) {
	cfg := Default()
	if w, err := cfg.Warnings(); err != nil || len(w) > 0 {
		t.Errorf("%v, %v", w, err)
	}
	have, err := asMap(cfg.KubeletConfiguration)
	if err != nil {
		t.Fatal(err)
	}
	if have["kind"] != "KubeletConfiguration" || have["apiVersion"] != "kubelet.config.k8s.io/v1beta1" {
		t.Errorf("configz has no kind: %v %v", have["kind"], have["apiVersion"])
	}
	fields := reflect.TypeFor[kubeletconfig.KubeletConfiguration]()
	for name := range unimplementedFields {
		if _, ok := fields.FieldByNameFunc(func(s string) bool {
			f, _ := fields.FieldByName(s)
			tag, _, _ := strings.Cut(f.Tag.Get("json"), ",")
			return tag == name
		}); !ok {
			t.Errorf("KubeletConfiguration has no field %s", name)
		}
	}
	fs := pflag.NewFlagSet("", pflag.ContinueOnError)
	cfg.AddFlags(fs)
	for _, flag := range unimplementedFields {
		if name := strings.TrimPrefix(flag, "--"); name != "" && fs.Lookup(name) == nil {
			t.Errorf("there is no flag %s", flag)
		}
	}
}

func TestDropInsAreMergedInOrder(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{
		"kubelet.yaml":        head + "maxPods: 7\nclusterDNS: [10.0.0.1, 10.0.0.2]\nsystemReserved: {cpu: \"1\", memory: 1Gi}\nstaticPodPath: manifests\npodsPerCore: 3\nenableServer: true\n",
		"d/10-a.conf":         head + "maxPods: 8\nsystemReserved: {cpu: \"2\"}\nenableServer: false\n",
		"d/20-b.conf":         `{"apiVersion":"kubelet.config.k8s.io/v1beta1","kind":"KubeletConfiguration","maxPods":9,"clusterDNS":["10.0.0.3"],"podsPerCore":null}`,
		"d/15/sub.conf":       head + "maxPods: 10\neventBurst: 3\n",
		"d/30-ignored.yaml":   head + "maxPods: 11\n",
		"d/40-unrelated.conf": head + "nodeStatusUpdateFrequency: 20s\n",
	} {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	cfg, err := parse(t, "", "--config", filepath.Join(dir, "kubelet.yaml"), "--config-dir", filepath.Join(dir, "d"), "--event-burst=4")
	if err != nil {
		t.Fatal(err)
	}
	if cfg.MaxPods != 9 || cfg.PodsPerCore != 0 || *cfg.EnableServer || cfg.EventBurst != 4 {
		t.Errorf("maxPods %d, podsPerCore %d, enableServer %v, eventBurst %d", cfg.MaxPods, cfg.PodsPerCore, *cfg.EnableServer, cfg.EventBurst)
	}
	if len(cfg.ClusterDNS) != 1 || cfg.SystemReserved["cpu"] != "2" || cfg.SystemReserved["memory"] != "1Gi" {
		t.Errorf("lists are replaced, maps are merged: %v, %v", cfg.ClusterDNS, cfg.SystemReserved)
	}
	if cfg.StaticPodPath != filepath.Join(dir, "manifests") {
		t.Errorf("a relative path is not of the file's folder: %s", cfg.StaticPodPath)
	}
	if cfg.NodeStatusReportFrequency.Duration != 20*time.Second {
		t.Errorf("nodeStatusReportFrequency %v", cfg.NodeStatusReportFrequency)
	}
	if err := os.WriteFile(filepath.Join(dir, "d", "50.conf"), []byte(head+"maxPodz: 1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err = parse(t, "", "--config-dir", filepath.Join(dir, "d"))
	if err == nil || !strings.Contains(err.Error(), "50.conf") || !strings.Contains(err.Error(), `strict decoding error: unknown field "maxPodz"`) {
		t.Errorf("%v", err)
	}
}

func TestReservedCPUsCountInsteadOfQuantities(t *testing.T) {
	cfg := Default()
	cfg.SystemReserved, cfg.KubeReserved = map[string]string{"cpu": "500m", "memory": "1Gi"}, map[string]string{"cpu": "100m"}
	cfg.ReservedSystemCPUs = "0-1,5"
	got, err := cfg.Reserved(0, 0)
	if err != nil || got.Cpu().MilliValue() != 3000 || got.Memory().Value() != (1<<30)+(100<<20) {
		t.Errorf("%v, %v", got, err)
	}
	cfg.PodsPerCore = 10
	if n := cfg.PodLimit(2); n != 20 {
		t.Errorf("%d pods on two cores", n)
	}
	if n := cfg.PodLimit(64); n != 110 {
		t.Errorf("%d pods on 64 cores", n)
	}
}

func FuzzConfigFile(f *testing.F) {
	f.Add([]byte(head + "maxPods: 7\n"))
	f.Add([]byte("{"))
	f.Fuzz(func(t *testing.T, data []byte) {
		path := filepath.Join(t.TempDir(), "f")
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
		cfg := Default()
		cfg.ConfigFile, cfg.NodeName = path, "n"
		fs := pflag.NewFlagSet("", pflag.ContinueOnError)
		cfg.AddFlags(fs)
		if cfg.LoadFiles(fs) == nil {
			_ = cfg.Complete() // must not panic, whatever was read
		}
	})
}

func TestMissingCredentialPluginsAreToldBeforeTheStart(t *testing.T) {
	file := filepath.Join(t.TempDir(), "providers.yaml")
	providers := "apiVersion: kubelet.config.k8s.io/v1\nkind: CredentialProviderConfig\nproviders: [{name: helper, matchImages: [a.io], defaultCacheDuration: 1m, apiVersion: credentialprovider.kubelet.k8s.io/v1}]\n"
	if err := os.WriteFile(file, []byte(providers), 0o600); err != nil {
		t.Fatal(err)
	}
	for dir, want := range map[string]string{t.TempDir(): "helper", "/nonexistent": "plugin directory", "": "plugin directory"} {
		cfg, err := parse(t, "", "--image-credential-provider-config="+file, "--image-credential-provider-bin-dir="+dir)
		if err != nil {
			t.Fatal(err)
		}
		if err := cfg.Validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", dir, err)
		}
	}
}

func TestBadConfigurationIsRefused(t *testing.T) {
	for name, tc := range map[string]struct{ file, flag, want string }{
		"kind":        {"kind: Pod\napiVersion: v1\n", "", "KubeletConfiguration"},
		"field":       {head + "maxPodz: 7\n", "", "maxPodz"},
		"yaml":        {"{", "", "yaml"},
		"taint":       {"", "--register-with-taints=a", "key=value:effect"},
		"taint key":   {head + "registerWithTaints: [{key: '*', effect: NoSchedule}]\n", "", "registerWithTaints"},
		"dns":         {"", "--cluster-dns=x", "--cluster-dns"},
		"node name":   {"", "--hostname-override=A_B", "node name"},
		"quantity":    {"", "--kube-reserved=cpu=x", "--kube-reserved"},
		"address":     {"", "--address=x", "--address"},
		"relative":    {"", "--pod-manifest-path=x", "absolute"},
		"label":       {"", "--node-labels=kubernetes.io/foo=x", "unknown 'kubernetes.io' or 'k8s.io' labels specified with --node-labels: [kubernetes.io/foo]"},
		"label text":  {"", "--node-labels=a=-", "invalid node labels: 'a=-'"},
		"max pods":    {"", "--max-pods=-1", "invalid configuration: maxPods (--max-pods) -1 must not be a negative number"},
		"image age":   {head + "imageMaximumGCAge: 1m\n", "", "imageMaximumGCAge 1m0s must be greater than imageMinimumGCAge 2m0s"},
		"images gc":   {head + "imageGCLowThresholdPercent: 90\n", "", "must be less than imageGCHighThresholdPercent"},
		"throttling":  {head + "memoryThrottlingFactor: 1.5\n", "", "memoryThrottlingFactor 1.5 must be greater than 0 and less than or equal to 1.0"},
		"reservation": {head + "memoryReservationPolicy: Some\n", "", `option "Some" specified for memoryReservationPolicy. Valid options are "None" or "TieredReservation"`},
		"swap":        {head + "memorySwap: {swapBehavior: Much}\n", "", `memorySwap.swapBehavior "Much" must be one of: "", "LimitedSwap" or "NoSwap"`},
		"enforce":     {"", "--enforce-node-allocatable=all", `option "all" specified for enforceNodeAllocatable`},
		"shutdown":    {head + "shutdownGracePeriod: 10s\nshutdownGracePeriodCriticalPods: 20s\n", "", "shutdownGracePeriodCriticalPods 20s must be <= shutdownGracePeriod 10s"},
		"priorities":  {head + "shutdownGracePeriod: 10s\nshutdownGracePeriodByPodPriority: [{priority: 1, shutdownGracePeriodSeconds: 1}]\n", "", "Cannot specify both"},
		"log query":   {head + "enableSystemLogQuery: true\nenableSystemLogHandler: false\n", "", "enableSystemLogHandler is required"},
		"cpus":        {"", "--reserved-cpus=a", "unable to parse reservedSystemCPUs"},
		"tls":         {"", "--tls-min-version=VersionTLS9", "tlsMinVersion"},
		"cipher":      {"", "--tls-cipher-suites=x", "tlsCipherSuites"},
		"mode":        {"", "--authorization-mode=RBAC", `authorization.mode (--authorization-mode) "RBAC" must be one of`},
		"cloud":       {"", "--cloud-provider=aws", "unknown cloud provider"},
		"logging":     {head + "logging: {format: xml}\n", "", "logging.format"},
		"twice":       {head + "maxPods: 1\nmaxPods: 2\n", "", "already set"},
		"cpu period":  {"", "--cpu-cfs-quota-period=50ms", "cpuCFSQuotaPeriod (--cpu-cfs-quota-period) {50ms} requires feature gate CustomCPUCFSQuotaPeriod"},
		"long period": {head + "featureGates: {CustomCPUCFSQuotaPeriod: true}\ncpuCFSQuotaPeriod: 2s\n", "", "must be between 1ms and 1sec, inclusive"},
		"sysctls":     {head + "defaultPodSysctls: {net.core.somaxconn: \"1\"}\n", "", "defaultPodSysctls requires feature gate DefaultPodSysctls"},
		"sysctl":      {head + "featureGates: {DefaultPodSysctls: true}\ndefaultPodSysctls: {vm.swappiness: \"1\"}\n", "", `the sysctl "vm.swappiness" is not known to be namespaced`},
		"any sysctl":  {head + "featureGates: {DefaultPodSysctls: true}\ndefaultPodSysctls: {net.ipv4.*: \"1\"}\n", "", `"net.ipv4.*" is not a valid sysctl name`},
		"same sysctl": {head + "featureGates: {DefaultPodSysctls: true}\ndefaultPodSysctls: {net.core.somaxconn: \"1\", net/core/somaxconn: \"2\"}\n", "", "are the same sysctl"},
		"pulls":       {head + "serializeImagePulls: true\nmaxParallelImagePulls: 2\n", "", "maxParallelImagePulls cannot be larger than 1 unless"},
		"both":        {head + "systemReservedCgroup: /x\nenforceNodeAllocatable: [system-reserved, system-reserved-compressible]\n", "", "cannot be specified together"},
		"no cgroups":  {"", "--cgroups-per-qos=false", `cgroupsPerQOS (--cgroups-per-qos) must be set to true when "pods" contained in enforceNodeAllocatable`},
		"run once":    {"", "--runonce", "Runonce mode has been deprecated"},
		"percentage":  {"", "--eviction-hard=memory.available<200%", "percentage"},
	} {
		t.Run(name, func(t *testing.T) {
			var args []string
			if tc.flag != "" {
				args = append(args, tc.flag)
			}
			cfg, err := parse(t, tc.file, args...)
			if err == nil {
				err = cfg.Complete()
			}
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got %v, want something about %q", err, tc.want)
			}
		})
	}
}

func TestRequestsAreLimitedOnlyOnDemand(t *testing.T) {
	cfg, client := Default(), &rest.Config{}
	if cfg.LimitRequests(client); client.QPS != -1 || client.ContentType != "application/vnd.kubernetes.protobuf" {
		t.Errorf("by default: %v %s", client.QPS, client.ContentType)
	}
	cfg.KubeAPIQPS, cfg.KubeAPIBurst, cfg.ContentType = new(int32(7)), 9, "application/json"
	if cfg.LimitRequests(client); client.QPS != 7 || client.Burst != 9 || client.ContentType != "application/json" {
		t.Errorf("%v %d %s", client.QPS, client.Burst, client.ContentType)
	}
}

func TestFlagsWithoutEffectTakeTheirValueInEitherForm(t *testing.T) {
	for _, name := range ignoredFlags {
		forms := [][]string{{"--" + name, "true"}, {"--" + name + "=true"}}
		if slices.Contains(ignoredSwitches, name) {
			forms = [][]string{{"--" + name}, {"--" + name + "=true"}}
		}
		for _, form := range forms {
			cfg := Default()
			fs := pflag.NewFlagSet("", pflag.ContinueOnError)
			cfg.AddFlags(fs)
			if err := fs.Parse(append(form, "--port", "1234")); err != nil || fs.NArg() != 0 || cfg.Port != 1234 || !slices.Equal(cfg.ignoredFlags, []string{name}) {
				t.Errorf("%q: %v, left over %q, --port %d, to be warned about %q", form, err, fs.Args(), cfg.Port, cfg.ignoredFlags)
			}
		}
	}
}
