package podplan

import (
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
)

// node returns a node with two CPUs, 1 GiB and room for five pods.
func node() *v1.Node {
	return &v1.Node{
		ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"zone": "a"}},
		Spec: v1.NodeSpec{Taints: []v1.Taint{
			{Key: "gone", Effect: v1.TaintEffectNoExecute}, {Key: "busy", Effect: v1.TaintEffectNoSchedule},
		}},
		Status: v1.NodeStatus{Allocatable: v1.ResourceList{
			v1.ResourceCPU: resource.MustParse("2"), v1.ResourceMemory: resource.MustParse("1Gi"), "example.com/gpu": resource.MustParse("0"), v1.ResourcePods: resource.MustParse("5"),
			"hugepages-2Mi": resource.MustParse("2Mi"),
		}, DeclaredFeatures: []string{"RestartAllContainersOnContainerExits"}},
	}
}

// asking returns a pod that tolerates the node and requests CPU and memory; "" for none.
func asking(name, cpu, memory string) *v1.Pod {
	r := v1.ResourceList{}
	if cpu != "" {
		r[v1.ResourceCPU] = resource.MustParse(cpu)
	}
	if memory != "" {
		r[v1.ResourceMemory] = resource.MustParse(memory)
	}
	return &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name)}, Spec: v1.PodSpec{
		Containers:  []v1.Container{{Name: "c", Resources: v1.ResourceRequirements{Requests: r}}},
		Tolerations: []v1.Toleration{{Operator: v1.TolerationOpExists}},
	}}
}

func TestAdmit(t *testing.T) {
	port := func(p *v1.Pod) { p.Spec.Containers[0].Ports = []v1.ContainerPort{{HostPort: 80, ContainerPort: 8080}} }
	sysctl := func(name string) func(*v1.Pod) {
		return func(p *v1.Pod) {
			p.Spec.SecurityContext = &v1.PodSecurityContext{Sysctls: []v1.Sysctl{{Name: name, Value: "1"}}}
		}
	}
	profile := func(kind v1.AppArmorProfileType) func(*v1.Pod) {
		return func(p *v1.Pod) {
			p.Spec.Containers[0].SecurityContext = &v1.SecurityContext{AppArmorProfile: &v1.AppArmorProfile{Type: kind}}
		}
	}
	all := func(fs ...func(*v1.Pod)) func(*v1.Pod) {
		return func(p *v1.Pod) {
			for _, f := range fs {
				f(p)
			}
		}
	}
	for name, tc := range map[string]struct {
		change  func(*v1.Pod)
		static  bool
		want    string // reason, and part of the message
		message string
	}{
		"fits":             {change: func(*v1.Pod) {}},
		"CPU":              {change: requesting("1500m", "2Gi"), want: "OutOfcpu", message: "Node didn't have enough resource: cpu, requested: 1500, used: 1000, capacity: 2000"},
		"memory":           {change: requesting("100m", "2Gi"), want: "OutOfmemory", message: "requested: 2147483648, used: 0, capacity: 1073741824"},
		"unknown resource": {change: func(p *v1.Pod) { p.Spec.Containers[0].Resources.Requests["example.com/x"] = resource.MustParse("1") }},
		"devices that the node has no more": {change: func(p *v1.Pod) {
			p.Spec.Containers[0].Resources.Requests["example.com/gpu"] = resource.MustParse("1")
		}, want: "OutOfexample.com/gpu", message: "requested: 1, used: 0, capacity: 0"},
		"devices of a claim": {change: func(p *v1.Pod) {
			p.Spec.Containers[0].Resources.Requests["example.com/gpu"] = resource.MustParse("1")
			p.Status.ExtendedResourceClaimStatus = &v1.PodExtendedResourceClaimStatus{RequestMappings: []v1.ContainerExtendedResourceRequest{{ResourceName: "example.com/gpu"}}}
		}},
		"huge pages":         {change: func(p *v1.Pod) { p.Spec.Containers[0].Resources.Requests["hugepages-2Mi"] = resource.MustParse("4Mi") }, want: "OutOfhugepages-2Mi", message: "requested: 4194304, used: 0, capacity: 2097152"},
		"of another size":    {change: func(p *v1.Pod) { p.Spec.Containers[0].Resources.Requests["hugepages-1Gi"] = resource.MustParse("1Gi") }, want: "OutOfhugepages-1Gi", message: "capacity: 0"},
		"selector":           {change: func(p *v1.Pod) { p.Spec.NodeSelector = map[string]string{"zone": "b"} }, want: "NodeAffinity", message: "Predicate NodeAffinity failed: node(s) didn't match Pod's node affinity/selector"},
		"taint":              {change: func(p *v1.Pod) { p.Spec.Tolerations = nil }, want: "TaintToleration", message: "untolerated taint"},
		"static":             {change: func(p *v1.Pod) { p.Spec.Tolerations = nil }, static: true},
		"port":               {change: port, want: "NodePorts", message: "Predicate NodePorts failed: node(s) didn't have free ports for the requested pod ports"},
		"port of a protocol": {change: all(port, func(p *v1.Pod) { p.Spec.Containers[0].Ports[0].Protocol = v1.ProtocolUDP })},
		"safe sysctl":        {change: sysctl("net.ipv4.tcp_syncookies")},
		"safe, with slash":   {change: sysctl("net/ipv4/tcp_syncookies")},
		"allowed sysctl":     {change: sysctl("net.core.somaxconn")},
		"unsafe sysctl":      {change: sysctl("kernel.msgmax"), want: "SysctlForbidden", message: `forbidden sysctl: "kernel.msgmax" not allowlisted`},
		"sysctl of the host's network": {change: all(sysctl("net.ipv4.tcp_syncookies"), func(p *v1.Pod) { p.Spec.HostNetwork = true }),
			want: "SysctlForbidden", message: `"net.ipv4.tcp_syncookies" not allowed with host Net enabled`},
		"sysctl of the host's IPC": {change: all(sysctl("kernel.shm_rmid_forced"), func(p *v1.Pod) { p.Spec.HostIPC = true }),
			want: "SysctlForbidden", message: `"kernel.shm_rmid_forced" not allowed with host IPC enabled`},
		"OS":          {change: func(p *v1.Pod) { p.Spec.OS = &v1.PodOS{Name: v1.Windows} }, want: "PodOSNotSupported", message: "Failed to admit pod as the OS field doesn't match node OS"},
		"OS label":    {change: func(p *v1.Pod) { p.Labels = map[string]string{v1.LabelOSStable: "windows"} }, want: "PodOSSelectorNodeLabelDoesNotMatch"},
		"AppArmor":    {change: profile(v1.AppArmorProfileTypeRuntimeDefault), want: "AppArmor", message: "Cannot enforce AppArmor: AppArmor is not enabled on the host"},
		"no AppArmor": {change: profile(v1.AppArmorProfileTypeUnconfined)},
		"a feature that is not declared": {change: func(p *v1.Pod) {
			p.Spec.Containers[0].VolumeMounts = []v1.VolumeMount{{Name: "v", BindMountOptions: []string{"noexec"}}}
		}, want: "PodFeatureUnsupported", message: "Pod requires node features that are not available: VolumeBindMountOptions"},
		"a feature that is": {change: func(p *v1.Pod) {
			p.Spec.Containers[0].RestartPolicyRules = []v1.ContainerRestartRule{{Action: v1.ContainerRestartRuleActionRestartAllContainers}}
		}},
		"strict groups": {change: func(p *v1.Pod) {
			p.Spec.SecurityContext = &v1.PodSecurityContext{SupplementalGroupsPolicy: ptr.To(v1.SupplementalGroupsPolicyStrict)}
		}, want: "SupplementalGroupsPolicyNotSupported", message: "SupplementalGroupsPolicy=Strict is not supported in this node"},
	} {
		other := asking("other", "1", "")
		port(other)
		pod := asking("p", "100m", "")
		tc.change(pod)
		v := Admit(AdmitInput{Pod: pod, Node: node(), Others: []*v1.Pod{other}, Static: tc.static, AllowedSysctls: []string{"net.core.*"}})
		if v.Admitted != (tc.want == "") || v.Reason != tc.want || !strings.Contains(v.Message, tc.message) {
			t.Errorf("%s: %+v", name, v)
		}
	}
	full := AdmitInput{Pod: asking("p", "", ""), Node: node()}
	for range 5 {
		full.Others = append(full.Others, asking("o", "", ""))
	}
	if v := Admit(full); v.Reason != "OutOfpods" {
		t.Errorf("a sixth of five pods: %+v", v)
	}
}

func requesting(cpu, memory string) func(*v1.Pod) {
	return func(p *v1.Pod) { p.Spec.Containers[0].Resources = asking("", cpu, memory).Spec.Containers[0].Resources }
}

func TestPreempt(t *testing.T) {
	critical := asking("critical", "1", "512Mi")
	critical.Spec.Priority = ptr.To[int32](2000001000)
	others := func(pods ...*v1.Pod) []*v1.Pod { return pods }
	guaranteed := asking("guaranteed", "1", "256Mi")
	guaranteed.Spec.Containers[0].Resources.Limits = guaranteed.Spec.Containers[0].Resources.Requests
	fellow := asking("fellow", "2", "")
	fellow.Spec.Priority = critical.Spec.Priority
	for name, tc := range map[string]struct {
		others  []*v1.Pod
		leaving string
		change  func(*v1.Node)
		want    string
		refused string
	}{
		"the burstable before the guaranteed": {others: others(guaranteed, asking("b", "1", "")), want: "b"},
		"one big rather than two small":       {others: others(asking("a", "400m", ""), asking("b", "500m", ""), asking("c", "900m", "")), want: "c"},
		"the smaller of two that do":          {others: others(asking("a", "1", "100Mi"), asking("b", "1", "10Mi")), want: "b"},
		"both resources":                      {others: others(asking("a", "1", "100Mi"), asking("b", "1", "900Mi")), want: "b"},
		"who leaves already is enough":        {others: others(asking("a", "1", ""), asking("b", "1", "")), leaving: "a", want: ""},
		"who leaves already is not enough":    {others: others(asking("a", "100m", ""), asking("b", "1900m", "")), leaving: "a", want: "b"},
		"no other critical one":               {others: others(fellow), refused: "UnexpectedAdmissionError"},
		"what no room helps with":             {others: others(asking("a", "2", "")), change: func(n *v1.Node) { n.Labels = nil }, refused: "NodeAffinity"},
	} {
		n := node()
		pod := critical.DeepCopy()
		if tc.change != nil {
			tc.change(n)
			pod.Spec.NodeSelector = map[string]string{"zone": "a"}
		}
		victims, v := Preempt(AdmitInput{Pod: pod, Node: n, Others: tc.others}, map[types.UID]bool{types.UID(tc.leaving): true})
		var got []string
		for _, p := range victims {
			got = append(got, p.Name)
		}
		reason := ""
		if v != nil {
			reason = v.Reason
		}
		if strings.Join(got, " ") != tc.want || reason != tc.refused {
			t.Errorf("%s: %v, %+v", name, got, v)
		}
	}
}

func TestSysctlPatterns(t *testing.T) {
	if err := CheckSysctlPatterns([]string{"net.*", "kernel.msg*", "kernel.shmmax", "fs.mqueue.msg_max"}); err != nil {
		t.Error(err)
	}
	if err := CheckSysctlPatterns([]string{"vm.swappiness"}); err == nil {
		t.Error("a sysctl of the whole machine can be allowed")
	}
}
