package criconfig

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/utils/ptr"
)

func TestExpand(t *testing.T) {
	lookup := func(n string) (string, bool) {
		v, ok := map[string]string{"A": "1", "B": "$(A)"}[n]
		return v, ok
	}
	for in, want := range map[string]string{
		"": "", "x": "x", "$(A)": "1", "$(A)$(A)": "11", "$$(A)": "$(A)", "$(NO)": "$(NO)", "$(A": "$(A", "$": "$", "a$b": "a$b",
		"$$": "$", "$(B)": "$(A)", "$$$(A)": "$1", "()": "()", "$()": "$()",
	} {
		if got := Expand(in, lookup); got != want {
			t.Errorf("%q: got %q, want %q", in, got, want)
		}
	}
}

func FuzzExpand(f *testing.F) {
	f.Add("$(A) $$(B) $(")
	f.Fuzz(func(t *testing.T, s string) {
		if got := Expand(s, func(string) (string, bool) { return "", false }); !strings.Contains(s, "$$") && got != s {
			t.Errorf("%q became %q although nothing is defined", s, got)
		}
	})
}

type none struct{}

func (none) ConfigMap(_, name string) (*v1.ConfigMap, error) {
	if name == "cm" {
		return &v1.ConfigMap{Data: map[string]string{"K": "v", "bad=name": "x"}}, nil
	}
	return nil, apierrors.NewNotFound(schema.GroupResource{Resource: "configmap"}, name)
}

func (none) Secret(_, name string) (*v1.Secret, error) {
	if name == "s" {
		return &v1.Secret{Data: map[string][]byte{"P": []byte("w")}}, nil
	}
	return nil, apierrors.NewNotFound(schema.GroupResource{Resource: "secret"}, name)
}

func service(ns, name, ip string, ports ...v1.ServicePort) *v1.Service {
	return &v1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name}, Spec: v1.ServiceSpec{ClusterIP: ip, Ports: ports}}
}

func envOf(t *testing.T, pod *v1.Pod, c *v1.Container) (map[string]string, error) {
	t.Helper()
	env, _, err := Environment(EnvInput{
		Pod: pod, Container: c, Objects: none{}, PodIPs: []string{"10.0.0.5", "fd00::5"}, HostIPs: []string{"192.0.2.1"}, NodeName: "n1",
		Allocatable: v1.ResourceList{v1.ResourceMemory: resource.MustParse("4Gi")},
		Services: []*v1.Service{
			service("default", "kubernetes", "10.96.0.1", v1.ServicePort{Name: "https", Port: 443, Protocol: v1.ProtocolTCP}),
			service("ns", "my-db", "10.96.0.7", v1.ServicePort{Port: 5432, Protocol: v1.ProtocolTCP}),
			service("other", "far", "10.96.0.8", v1.ServicePort{Port: 1}), service("ns", "headless", "None", v1.ServicePort{Port: 1}),
		},
	})
	out := map[string]string{}
	for _, e := range env {
		if _, twice := out[e.Name]; twice {
			t.Errorf("%s is there twice", e.Name)
		}
		out[e.Name] = e.Value
	}
	return out, err
}

func TestEnvironment(t *testing.T) {
	pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p", UID: "u", Labels: map[string]string{"l": "x"}}, Spec: v1.PodSpec{ServiceAccountName: "sa"}}
	c := &v1.Container{
		Name: "c", Resources: v1.ResourceRequirements{Limits: v1.ResourceList{v1.ResourceCPU: resource.MustParse("1500m")}},
		EnvFrom: []v1.EnvFromSource{
			{Prefix: "C_", ConfigMapRef: &v1.ConfigMapEnvSource{LocalObjectReference: v1.LocalObjectReference{Name: "cm"}}},
			{SecretRef: &v1.SecretEnvSource{LocalObjectReference: v1.LocalObjectReference{Name: "none"}, Optional: new(true)}},
		},
		Env: []v1.EnvVar{
			{Name: "A", Value: "1"}, {Name: "B", Value: "$(A)-$(C_K)-$(LATER)-$(MY_DB_SERVICE_HOST)"}, {Name: "LATER", Value: "x"}, {Name: "A", Value: "2"},
			{Name: "IPS", ValueFrom: &v1.EnvVarSource{FieldRef: &v1.ObjectFieldSelector{FieldPath: "status.podIPs"}}},
			{Name: "LABEL", ValueFrom: &v1.EnvVarSource{FieldRef: &v1.ObjectFieldSelector{FieldPath: "metadata.labels['l']"}}},
			{Name: "NODE", ValueFrom: &v1.EnvVarSource{FieldRef: &v1.ObjectFieldSelector{FieldPath: "spec.nodeName"}}},
			{Name: "CPU", ValueFrom: &v1.EnvVarSource{ResourceFieldRef: &v1.ResourceFieldSelector{Resource: "limits.cpu"}}},
			{Name: "MILLI", ValueFrom: &v1.EnvVarSource{ResourceFieldRef: &v1.ResourceFieldSelector{Resource: "limits.cpu", Divisor: resource.MustParse("1m")}}},
			{Name: "MEM", ValueFrom: &v1.EnvVarSource{ResourceFieldRef: &v1.ResourceFieldSelector{Resource: "limits.memory", Divisor: resource.MustParse("1Mi")}}},
			{Name: "PW", ValueFrom: &v1.EnvVarSource{SecretKeyRef: &v1.SecretKeySelector{LocalObjectReference: v1.LocalObjectReference{Name: "s"}, Key: "P"}}},
			{Name: "NONE", ValueFrom: &v1.EnvVarSource{SecretKeyRef: &v1.SecretKeySelector{LocalObjectReference: v1.LocalObjectReference{Name: "s"}, Key: "no", Optional: new(true)}}},
		},
	}
	got, err := envOf(t, pod, c)
	if err != nil {
		t.Fatal(err)
	}
	for k, v := range map[string]string{
		"C_K": "v", "A": "2", "B": "1-v-$(LATER)-10.96.0.7", "IPS": "10.0.0.5,fd00::5", "LABEL": "x", "NODE": "n1", "CPU": "2", "MILLI": "1500",
		"MEM": "4096", "PW": "w", "KUBERNETES_SERVICE_HOST": "10.96.0.1", "KUBERNETES_SERVICE_PORT": "443", "KUBERNETES_SERVICE_PORT_HTTPS": "443",
		"KUBERNETES_PORT": "tcp://10.96.0.1:443", "KUBERNETES_PORT_443_TCP_ADDR": "10.96.0.1", "MY_DB_SERVICE_PORT": "5432", "MY_DB_PORT_5432_TCP": "tcp://10.96.0.7:5432",
	} {
		if got[k] != v {
			t.Errorf("%s: got %q, want %q", k, got[k], v)
		}
	}
	for _, absent := range []string{"NONE", "FAR_SERVICE_HOST", "HEADLESS_SERVICE_HOST", "C_bad=name"} {
		if v, ok := got[absent]; ok {
			t.Errorf("%s is there: %q", absent, v)
		}
	}
	pod.Spec.EnableServiceLinks = new(false)
	if got, err = envOf(t, pod, c); err != nil || got["MY_DB_SERVICE_HOST"] != "" || got["KUBERNETES_SERVICE_HOST"] == "" {
		t.Errorf("without service links: %v, %v", got, err)
	}
}

func TestEnvironmentErrors(t *testing.T) {
	pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p"}}
	for want, src := range map[string]*v1.EnvVarSource{
		`configmap "none" not found`:                  {ConfigMapKeyRef: &v1.ConfigMapKeySelector{LocalObjectReference: v1.LocalObjectReference{Name: "none"}, Key: "k"}},
		"couldn't find key k in ConfigMap ns/cm":      {ConfigMapKeyRef: &v1.ConfigMapKeySelector{LocalObjectReference: v1.LocalObjectReference{Name: "cm"}, Key: "k"}},
		"couldn't find key k in Secret ns/s":          {SecretKeyRef: &v1.SecretKeySelector{LocalObjectReference: v1.LocalObjectReference{Name: "s"}, Key: "k"}},
		"unsupported fieldPath: status.x":             {FieldRef: &v1.ObjectFieldSelector{FieldPath: "status.x"}},
		"unsupported container resource : cpu":        {ResourceFieldRef: &v1.ResourceFieldSelector{Resource: "cpu"}},
		"container other not found":                   {ResourceFieldRef: &v1.ResourceFieldSelector{Resource: "limits.cpu", ContainerName: "other"}},
		"environment files are not available":         {FileKeyRef: &v1.FileKeySelector{}},
		`fieldPath "spec" does not support subscript`: {FieldRef: &v1.ObjectFieldSelector{FieldPath: "spec['x']"}},
	} {
		_, err := envOf(t, pod, &v1.Container{Env: []v1.EnvVar{{Name: "X", ValueFrom: src}}})
		if err == nil || err.Error() != want {
			t.Errorf("got %v, want %s", err, want)
		}
	}
}

func TestDNS(t *testing.T) {
	host := []byte("# x\nnameserver 9.9.9.9\nsearch corp.example. lan\noptions edns0 timeout:1\n")
	pod := func(policy v1.DNSPolicy, hostNetwork bool, cfg *v1.PodDNSConfig) *v1.Pod {
		return &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns"}, Spec: v1.PodSpec{DNSPolicy: policy, HostNetwork: hostNetwork, DNSConfig: cfg}}
	}
	extra := &v1.PodDNSConfig{
		Nameservers: []string{"1.1.1.1", "9.9.9.9"}, Searches: []string{"lan", "more"}, Options: []v1.PodDNSConfigOption{{Name: "ndots", Value: new("2")}, {Name: "rotate"}},
	}
	for name, tc := range map[string]struct {
		pod                        *v1.Pod
		dns                        []string
		servers, searches, options string
		warns                      bool
	}{
		"cluster":           {pod(v1.DNSClusterFirst, false, nil), []string{"10.96.0.10"}, "10.96.0.10", "ns.svc.c.l svc.c.l c.l corp.example lan", "ndots:5", false},
		"cluster, none":     {pod(v1.DNSClusterFirst, false, nil), nil, "9.9.9.9", "corp.example lan", "edns0 timeout:1", true},
		"host network":      {pod(v1.DNSClusterFirst, true, nil), []string{"10.96.0.10"}, "9.9.9.9", "corp.example lan", "edns0 timeout:1", false},
		"with host network": {pod(v1.DNSClusterFirstWithHostNet, true, nil), []string{"10.96.0.10"}, "10.96.0.10", "ns.svc.c.l svc.c.l c.l corp.example lan", "ndots:5", false},
		"default":           {pod(v1.DNSDefault, false, nil), []string{"10.96.0.10"}, "9.9.9.9", "corp.example lan", "edns0 timeout:1", false},
		"none":              {pod(v1.DNSNone, false, extra), []string{"10.96.0.10"}, "1.1.1.1 9.9.9.9", "lan more", "ndots:2 rotate", false},
		"merged":            {pod(v1.DNSDefault, false, extra), nil, "9.9.9.9 1.1.1.1", "corp.example lan more", "edns0 timeout:1 ndots:2 rotate", false},
		"too many":          {pod(v1.DNSNone, false, &v1.PodDNSConfig{Nameservers: []string{"1", "2", "3", "4"}}), nil, "1 2 3", "", "", true},
	} {
		got, warnings := DNS(DNSInput{Pod: tc.pod, ClusterDNS: tc.dns, ClusterDomain: "c.l", Host: host})
		if strings.Join(got.Servers, " ") != tc.servers || strings.Join(got.Searches, " ") != tc.searches || strings.Join(got.Options, " ") != tc.options || len(warnings) > 0 != tc.warns {
			t.Errorf("%s: %v %v", name, got, warnings)
		}
	}
}

func FuzzParseResolvConf(f *testing.F) {
	f.Add([]byte("nameserver 1.1.1.1\nsearch a b\noptions x"))
	f.Fuzz(func(t *testing.T, data []byte) {
		for _, s := range ParseResolvConf(data).Servers {
			if strings.ContainsAny(s, " \n") {
				t.Errorf("%q", s)
			}
		}
	})
}

func TestNoDNS(t *testing.T) {
	pod := &v1.Pod{Spec: v1.PodSpec{DNSPolicy: v1.DNSDefault}}
	if cfg, warnings := DNS(DNSInput{Pod: &v1.Pod{}, NoClusterDNS: true, Host: []byte("nameserver 9.9.9.9\n")}); len(warnings) > 0 || !slices.Equal(cfg.Servers, []string{"9.9.9.9"}) {
		t.Errorf("a cluster without DNS: %v, %v", cfg, warnings)
	}
	cfg, _ := DNS(DNSInput{Pod: pod, NoHost: true, NodeIPs: []string{"192.0.2.1", "2001:db8::1"}})
	if !slices.Equal(cfg.Servers, []string{"127.0.0.1", "::1"}) || !slices.Equal(cfg.Searches, []string{"."}) {
		t.Errorf("%+v", cfg)
	}
	pod.Spec.DNSPolicy = v1.DNSNone
	pod.Spec.DNSConfig = &v1.PodDNSConfig{Nameservers: []string{"192.0.2.53"}}
	if cfg, _ := DNS(DNSInput{Pod: pod, NoHost: true}); !slices.Equal(cfg.Servers, []string{"192.0.2.53"}) || len(cfg.Searches) != 0 {
		t.Errorf("%+v", cfg)
	}
}

func TestEnvFile(t *testing.T) {
	for file, want := range map[string]struct{ value, err string }{
		"KEY='v'":                       {value: "v"},
		"# c\n\n  KEY='v' # said so":    {value: "v"},
		"OTHER='x'\nKEY='a=b \"c\"'\n":  {value: `a=b "c"`},
		"KEY='one\ntwo\n three'\nX='y'": {value: "one\ntwo\n three"},
		"A='1\n2'\nKEY='v'":             {value: "v"},
		"KEY= 'v'":                      {},
		"OTHER='x'":                     {},
		"KEY=v":                         {err: "line 1: value must be enclosed in single quotes"},
		"KEY ='v'":                      {err: "line 1: whitespace before '='"},
		"A='1\n2'\nKEY":                 {err: "line 3: missing '='"},
		"='v'":                          {err: "line 1: empty variable name"},
		"\nKEY='v":                      {err: "line 2: unclosed single quote"},
		"KEY='v' x":                     {err: "line 1: unexpected content after closing quote"},
	} {
		got, err := EnvFileValue(strings.NewReader(file), "KEY")
		if got != want.value || (err == nil) != (want.err == "") || err != nil && !strings.Contains(err.Error(), want.err) {
			t.Errorf("%q: %q, %v", file, got, err)
		}
	}
}

func FuzzEnvFile(f *testing.F) {
	f.Add("KEY='a\nb' # c\n", "KEY")
	f.Fuzz(func(t *testing.T, file, key string) {
		if v, err := EnvFileValue(strings.NewReader(file), key); err == nil && strings.Contains(v, "'") {
			t.Errorf("%q: %q", file, v)
		}
	})
}

func TestHosts(t *testing.T) {
	pod := &v1.Pod{Spec: v1.PodSpec{HostAliases: []v1.HostAlias{{IP: "1.2.3.4", Hostnames: []string{"a", "b"}}}}}
	got := string(Hosts(pod, []string{"10.0.0.5"}, "h", "sub.ns.svc.c.l", nil))
	for _, want := range []string{"# Kubernetes-managed hosts file.\n", "127.0.0.1\tlocalhost\n", "10.0.0.5\th.sub.ns.svc.c.l\th\n", "# Entries added by HostAliases.\n1.2.3.4\ta\tb\n"} {
		if !strings.Contains(got, want) {
			t.Errorf("no %q in\n%s", want, got)
		}
	}
	pod.Spec.HostNetwork = true
	if got := string(Hosts(pod, nil, "h", "", []byte("node\n"))); !strings.HasPrefix(got, "# Kubernetes-managed hosts file (host network).\nnode\n") {
		t.Errorf("%s", got)
	}
}

func TestResources(t *testing.T) {
	list := func(cpu, mem string) v1.ResourceList {
		l := v1.ResourceList{}
		if cpu != "" {
			l[v1.ResourceCPU] = resource.MustParse(cpu)
		}
		if mem != "" {
			l[v1.ResourceMemory] = resource.MustParse(mem)
		}
		return l
	}
	for _, tc := range []struct {
		req, lim             v1.ResourceList
		shares, quota, limit int64
		oom                  int64
		cgroup               string
	}{
		{nil, nil, 2, -1, 0, 1000, "/x/kubepods/besteffort/podu"},
		{list("500m", "1Gi"), nil, 512, -1, 0, 900, "/x/kubepods/burstable/podu"},
		{list("1", "1Gi"), list("1", "1Gi"), 1024, 100000, 1 << 30, -997, "/x/kubepods/podu"},
		{nil, list("250m", ""), 256, 25000, 0, 999, "/x/kubepods/burstable/podu"},
		{list("1m", ""), list("1m", ""), 2, 1000, 0, 999, "/x/kubepods/burstable/podu"},
	} {
		pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "u"}, Spec: v1.PodSpec{Containers: []v1.Container{{Name: "c", Resources: v1.ResourceRequirements{Requests: tc.req, Limits: tc.lim}}}}}
		r := resourcesOf(pod.Spec.Containers[0].Resources, CFS{})
		oom := OOMScoreAdj(pod, &pod.Spec.Containers[0], 10<<30)
		if r.CpuShares != tc.shares || r.CpuQuota != tc.quota || r.MemoryLimitInBytes != tc.limit || oom != tc.oom {
			t.Errorf("%v %v: shares %d, quota %d, memory %d, oom %d", tc.req, tc.lim, r.CpuShares, r.CpuQuota, r.MemoryLimitInBytes, oom)
		}
		l := Layout{Root: "x"}
		if got := l.Pod(pod); got != tc.cgroup || !slices.Contains(l.Candidates("u"), got) {
			t.Errorf("cgroup %s, want %s", got, tc.cgroup)
		}
	}
}

func TestRunAsNonRoot(t *testing.T) {
	pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p", UID: "u"}, Spec: v1.PodSpec{SecurityContext: &v1.PodSecurityContext{RunAsNonRoot: new(true)}}}
	for want, in := range map[string]ContainerInput{
		"image will run as root":    {ImageUID: ptr.To[int64](0)},
		"non-numeric user (web)":    {ImageUser: "web"},
		"runAsUser breaks non-root": {Container: &v1.Container{SecurityContext: &v1.SecurityContext{RunAsUser: ptr.To[int64](0)}}},
		"":                          {ImageUID: ptr.To[int64](7)},
	} {
		in.Pod = pod
		if in.Container == nil {
			in.Container = &v1.Container{Name: "c"}
		}
		_, err := Container(in)
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
}

func TestSecurityContext(t *testing.T) {
	pod := &v1.Pod{Spec: v1.PodSpec{
		HostPID: true, HostNetwork: true,
		SecurityContext: &v1.PodSecurityContext{
			RunAsUser: ptr.To[int64](1), FSGroup: ptr.To[int64](5), SupplementalGroups: []int64{6},
			SeccompProfile: &v1.SeccompProfile{Type: v1.SeccompProfileTypeLocalhost, LocalhostProfile: new("p.json")},
		},
	}}
	c := &v1.Container{Name: "c", SecurityContext: &v1.SecurityContext{
		RunAsUser: ptr.To[int64](2), AllowPrivilegeEscalation: new(false), ReadOnlyRootFilesystem: new(true),
		Capabilities: &v1.Capabilities{Add: []v1.Capability{"NET_ADMIN"}, Drop: []v1.Capability{"ALL"}},
	}, Lifecycle: &v1.Lifecycle{StopSignal: ptr.To(v1.SIGUSR1)}}
	cfg, err := Container(ContainerInput{Pod: pod, Container: c, Dirs: Dirs{Root: "/k"}})
	if err != nil {
		t.Fatal(err)
	}
	sc := cfg.Linux.SecurityContext
	if sc.RunAsUser.Value != 2 || !sc.NoNewPrivs || !sc.ReadonlyRootfs || !slices.Equal(sc.SupplementalGroups, []int64{5, 6}) ||
		sc.Seccomp.LocalhostRef != "/k/seccomp/p.json" || sc.NamespaceOptions.Pid != runtimeapi.NamespaceMode_NODE ||
		sc.NamespaceOptions.Network != runtimeapi.NamespaceMode_NODE || len(sc.MaskedPaths) == 0 || cfg.StopSignal != runtimeapi.Signal_SIGNAL_SIGUSR1 {
		t.Errorf("%+v", sc)
	}
	if m := sc.NamespaceOptions.UsernsOptions.GetMode(); m != runtimeapi.NamespaceMode_NODE {
		t.Errorf("user namespace: %v", m)
	}
}

// TestOwnUsers: sandbox, containers and their mounts have the same IDs.
func TestOwnUsers(t *testing.T) {
	pod := &v1.Pod{Spec: v1.PodSpec{HostUsers: new(false)}}
	c := &v1.Container{Name: "c"}
	if _, err := Container(ContainerInput{Pod: pod, Container: c}); err == nil {
		t.Error("a container of a pod without IDs would run as root of the node")
	}
	ids := []*runtimeapi.IDMapping{{HostId: 65536, Length: 65536}}
	users := &runtimeapi.UserNamespace{Mode: runtimeapi.NamespaceMode_POD, Uids: ids, Gids: ids}
	cfg, err := Container(ContainerInput{Pod: pod, Container: c, UserNS: users, Mounts: []*runtimeapi.Mount{{ContainerPath: "/v"}}})
	if err != nil {
		t.Fatal(err)
	}
	box, err := Sandbox(SandboxInput{Pod: pod, UserNS: users})
	if err != nil {
		t.Fatal(err)
	}
	if cfg.Linux.SecurityContext.NamespaceOptions.UsernsOptions != users || box.Linux.SecurityContext.NamespaceOptions.UsernsOptions != users ||
		cfg.Mounts[0].UidMappings[0] != ids[0] || cfg.Mounts[0].GidMappings[0] != ids[0] {
		t.Errorf("container %v, sandbox %v, mounts %v", cfg.Linux.SecurityContext.NamespaceOptions, box.Linux.SecurityContext.NamespaceOptions, cfg.Mounts)
	}
}

func TestHostname(t *testing.T) {
	long := strings.Repeat("a", 62) + "--b"
	for _, tc := range []struct{ name, hostname, subdomain, want, domain string }{
		{"p", "", "", "p", ""}, {"p", "h", "", "h", ""}, {"p", "h", "s", "h", "s.ns.svc.c.l"}, {long, "", "", strings.Repeat("a", 62), ""},
	} {
		pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: tc.name, Namespace: "ns"}, Spec: v1.PodSpec{Hostname: tc.hostname, Subdomain: tc.subdomain}}
		if got, domain, err := Hostname(pod, "c.l"); err != nil || got != tc.want || domain != tc.domain {
			t.Errorf("%+v: %s %s %v", tc, got, domain, err)
		}
	}
	pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "ns", UID: "u"}, Spec: v1.PodSpec{Hostname: "h", Subdomain: "s"}}
	for override, want := range map[string]string{"a.example.org": "a.example.org", strings.Repeat("a", 62) + ".b": strings.Repeat("a", 62), "A_B": ""} {
		pod.Spec.HostnameOverride = &override
		if got, domain, err := Hostname(pod, "c.l"); got != want || domain != "" || (err != nil) != (want == "") {
			t.Errorf("%s: %s %s %v", override, got, domain, err)
		}
		if want == "" {
			continue
		}
		cfg, err := Sandbox(SandboxInput{Pod: pod, ClusterDomain: "c.l", LogRoot: "/l"})
		if err != nil || cfg.Hostname != want {
			t.Errorf("%s: %+v, %v", override, cfg, err)
		}
	}
	pod.Spec.HostnameOverride, pod.Spec.SetHostnameAsFQDN = nil, new(true)
	cfg, err := Sandbox(SandboxInput{Pod: pod, ClusterDomain: "c.l", LogRoot: "/l"})
	if err != nil || cfg.Hostname != "h.s.ns.svc.c.l" || cfg.LogDirectory != "/l/ns_p_u" {
		t.Errorf("%+v, %v", cfg, err)
	}
}

func TestSysctlsOfAllPods(t *testing.T) {
	all := map[string]string{"net/core/somaxconn": "1", "kernel.sem": "2", "kernel.domainname": "d", "user.max_user_namespaces": "3"}
	for name, tc := range map[string]struct {
		spec v1.PodSpec
		want map[string]string
	}{
		"own namespaces": {v1.PodSpec{HostUsers: new(false)}, map[string]string{
			"net.core.somaxconn": "1", "kernel.sem": "2", "kernel.domainname": "d", "user.max_user_namespaces": "3"}},
		"the host's users":   {v1.PodSpec{}, map[string]string{"net.core.somaxconn": "1", "kernel.sem": "2", "kernel.domainname": "d"}},
		"the host's network": {v1.PodSpec{HostNetwork: true}, map[string]string{"kernel.sem": "2"}},
		"the host's IPC":     {v1.PodSpec{HostIPC: true}, map[string]string{"net.core.somaxconn": "1", "kernel.domainname": "d"}},
		"the pod's own": {v1.PodSpec{SecurityContext: &v1.PodSecurityContext{Sysctls: []v1.Sysctl{{Name: "net.core.somaxconn", Value: "9"}, {Name: "net.a", Value: "b"}}}},
			map[string]string{"net.core.somaxconn": "9", "net.a": "b", "kernel.sem": "2", "kernel.domainname": "d"}},
	} {
		users := &runtimeapi.UserNamespace{Mode: runtimeapi.NamespaceMode_POD}
		cfg, err := Sandbox(SandboxInput{Pod: &v1.Pod{Spec: tc.spec}, UserNS: users, Sysctls: all})
		if err != nil || !maps.Equal(cfg.Linux.Sysctls, tc.want) {
			t.Errorf("%s: %v, %v", name, cfg.GetLinux().GetSysctls(), err)
		}
	}
}

func TestSystemdSlices(t *testing.T) {
	pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "a-b"}, Spec: v1.PodSpec{Containers: []v1.Container{{}}}}
	l := Layout{Systemd: true}
	if got := l.Pod(pod); got != "/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-poda_b.slice" {
		t.Error(got)
	}
	if got := l.Parent(pod); got != "kubepods-besteffort-poda_b.slice" {
		t.Error(got)
	}
}

// changing is a config map that differs at every look.
type changing struct {
	Objects
	looks int
}

func (c *changing) ConfigMap(string, string) (*v1.ConfigMap, error) {
	c.looks++
	return &v1.ConfigMap{Data: map[string]string{"user": fmt.Sprint("user", c.looks), "password": fmt.Sprint("password", c.looks)}}, nil
}

// A config map that changed while an environment was being built used to contribute half of each
// state.
func TestAnEnvironmentShowsOneStateOfAnObject(t *testing.T) {
	key := func(name string) v1.EnvVar {
		return v1.EnvVar{Name: name, ValueFrom: &v1.EnvVarSource{ConfigMapKeyRef: &v1.ConfigMapKeySelector{
			LocalObjectReference: v1.LocalObjectReference{Name: "cm"}, Key: name,
		}}}
	}
	env, _, err := Environment(EnvInput{
		Pod: &v1.Pod{}, Container: &v1.Container{Env: []v1.EnvVar{key("user"), key("password")}}, Objects: &changing{},
	})
	if want := []Env{{"user", "user1"}, {"password", "password1"}}; err != nil || !slices.Equal(env, want) {
		t.Errorf("%v, %v", env, err)
	}
}
