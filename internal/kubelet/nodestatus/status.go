package nodestatus

import (
	"cmp"
	"fmt"
	"maps"
	"net"
	"runtime"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/version"
	ndf "k8s.io/component-helpers/nodedeclaredfeatures"
	ndftypes "k8s.io/component-helpers/nodedeclaredfeatures/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// What a cloud controller looks for.
const (
	taintUninitialized   = "node.cloudprovider.kubernetes.io/uninitialized"
	annotationProvidedIP = "alpha.kubernetes.io/provided-node-ip"
)

// Older names of two labels.
const (
	labelBetaOS   = "beta.kubernetes.io/os"
	labelBetaArch = "beta.kubernetes.io/arch"
)

// object returns the Node as we would register it, without status.
func (r *Reporter) object() *v1.Node {
	n := &v1.Node{
		ObjectMeta: metav1.ObjectMeta{
			Name: r.cfg.Name,
			Labels: map[string]string{
				v1.LabelHostname: r.cfg.Hostname, v1.LabelOSStable: runtime.GOOS, v1.LabelArchStable: runtime.GOARCH,
				labelBetaOS: runtime.GOOS, labelBetaArch: runtime.GOARCH,
			},
			Annotations: map[string]string{"volumes.kubernetes.io/controller-managed-attach-detach": "true"},
		},
		Spec: v1.NodeSpec{Unschedulable: r.cfg.Unschedulable, ProviderID: r.cfg.Provider, Taints: r.cfg.Taints},
	}
	maps.Copy(n.Annotations, r.cfg.Annotations)
	if r.cfg.PodCIDR != "" {
		n.Spec.PodCIDRs = strings.Split(r.cfg.PodCIDR, ",")
		n.Spec.PodCIDR = n.Spec.PodCIDRs[0]
	}
	maps.Copy(n.Labels, r.cfg.Labels)
	n.Spec.Taints = slices.Clone(r.cfg.Taints)
	if r.cfg.Unschedulable {
		n.Spec.Taints = addTaint(n.Spec.Taints, v1.Taint{Key: v1.TaintNodeUnschedulable, Effect: v1.TaintEffectNoSchedule})
	}
	if r.cfg.ExternalCloud {
		n.Spec.Taints = addTaint(n.Spec.Taints, v1.Taint{Key: taintUninitialized, Value: "true", Effect: v1.TaintEffectNoSchedule})
		if r.cfg.GivenIPs != "" {
			n.Annotations[annotationProvidedIP] = r.cfg.GivenIPs
		}
	}
	return n
}

func addTaint(list []v1.Taint, t v1.Taint) []v1.Taint {
	if slices.ContainsFunc(list, func(o v1.Taint) bool { return o.MatchTaint(&t) }) {
		return list
	}
	return append(list, t)
}

// declared returns the features that the scheduler and the API server may count on.
func (r *Reporter) declared(f *runtimeapi.RuntimeFeatures) []string {
	cfg := &ndf.NodeConfiguration{FeatureGates: ndftypes.FeatureGateMap(r.cfg.Features)}
	if v, err := version.ParseGeneric(r.cfg.KubeletVersion); err == nil {
		cfg.Version = v
	}
	cfg.RuntimeFeatures.UserNamespacesHostNetwork = f.GetUserNamespacesHostNetwork()
	return ndf.DefaultFramework.DiscoverNodeFeatures(cfg)
}

// status returns the node's status as determined now.
func (r *Reporter) status(rt *runtimeapi.StatusResponse, imgs []*runtimeapi.Image, rtErr error, now time.Time) v1.NodeStatus {
	st := v1.NodeStatus{
		Addresses:       r.addresses(),
		NodeInfo:        r.facts.info,
		DaemonEndpoints: v1.NodeDaemonEndpoints{KubeletEndpoint: v1.DaemonEndpoint{Port: r.cfg.Port()}},
		Images:          imageList(imgs, r.cfg.MaxImages),
	}
	st.NodeInfo.ContainerRuntimeVersion, st.NodeInfo.KubeletVersion = r.cfg.RuntimeVersion, r.cfg.KubeletVersion
	st.Capacity, st.Allocatable = r.resources()
	for _, h := range rt.GetRuntimeHandlers() {
		handler := v1.NodeRuntimeHandler{Name: h.Name}
		if f := h.Features; f != nil {
			handler.Features = &v1.NodeRuntimeHandlerFeatures{
				RecursiveReadOnlyMounts: &f.RecursiveReadOnlyMounts, UserNamespaces: &f.UserNamespaces,
			}
		}
		st.RuntimeHandlers = append(st.RuntimeHandlers, handler)
	}
	slices.SortFunc(st.RuntimeHandlers, func(a, b v1.NodeRuntimeHandler) int { return cmp.Compare(a.Name, b.Name) })
	if f := rt.GetFeatures(); f != nil {
		st.Features = &v1.NodeFeatures{SupplementalGroupsPolicy: &f.SupplementalGroupsPolicy}
	}
	st.DeclaredFeatures = r.declared(rt.GetFeatures())
	st.Conditions = r.conditions(rt, rtErr, metav1.NewTime(now).Rfc3339Copy())
	return st
}

func (r *Reporter) addresses() []v1.NodeAddress {
	var out []v1.NodeAddress
	hostname := v1.NodeAddress{Type: v1.NodeHostName, Address: r.cfg.Hostname}
	if r.cfg.ExternalCloud && r.cfg.GivenIPs == "" {
		return []v1.NodeAddress{hostname} // the cloud controller sets the others
	}
	for _, ip := range r.cfg.IPs {
		out = append(out, v1.NodeAddress{Type: v1.NodeInternalIP, Address: ip})
	}
	return append(out, hostname)
}

// resources returns the capacity, and how much of it pods may use.
func (r *Reporter) resources() (capacity, allocatable v1.ResourceList) {
	capacity = v1.ResourceList{
		v1.ResourceCPU:              *resource.NewMilliQuantity(r.facts.cpus*1000, resource.DecimalSI),
		v1.ResourceMemory:           *resource.NewQuantity(r.facts.memory, resource.BinarySI),
		v1.ResourceEphemeralStorage: *resource.NewQuantity(r.facts.storage, resource.BinarySI),
		v1.ResourcePods:             *resource.NewQuantity(r.cfg.MaxPods, resource.DecimalSI),
	}
	if r.cfg.NoLocalStorage {
		delete(capacity, v1.ResourceEphemeralStorage)
	}
	maps.Copy(capacity, r.facts.huge)
	allocatable = v1.ResourceList{}
	for name, q := range capacity {
		left := q.DeepCopy()
		if reserved, ok := r.cfg.Reserved[name]; ok {
			left.Sub(reserved)
		}
		if name == v1.ResourceMemory {
			for _, huge := range r.facts.huge {
				left.Sub(huge)
			}
		}
		if left.Sign() < 0 {
			left.Set(0)
		}
		allocatable[name] = left
	}
	if r.cfg.Devices != nil {
		all, healthy := r.cfg.Devices()
		maps.Copy(capacity, all)
		maps.Copy(allocatable, healthy)
	}
	return capacity, allocatable
}

// pressure is a condition of a node that is short of something; yes and no end the reasons of
// conditions and events, the texts end the messages.
type pressure struct {
	kind                     v1.NodeConditionType
	yes, yesText, no, noText string
}

var pressures = []pressure{
	{v1.NodeMemoryPressure, "InsufficientMemory", "insufficient memory available", "SufficientMemory", "sufficient memory available"},
	{v1.NodeDiskPressure, "DiskPressure", "disk pressure", "NoDiskPressure", "no disk pressure"},
	{v1.NodePIDPressure, "InsufficientPID", "insufficient PID available", "SufficientPID", "sufficient PID available"},
}

// conditions returns upstream's conditions, in its words.
func (r *Reporter) conditions(rt *runtimeapi.StatusResponse, rtErr error, now metav1.Time) []v1.NodeCondition {
	cond := func(t v1.NodeConditionType, s v1.ConditionStatus, reason, message string) v1.NodeCondition {
		return v1.NodeCondition{Type: t, Status: s, Reason: reason, Message: message, LastHeartbeatTime: now, LastTransitionTime: now}
	}
	var out []v1.NodeCondition
	for _, p := range pressures {
		if r.cfg.Pressure != nil && r.cfg.Pressure(p.kind) {
			out = append(out, cond(p.kind, v1.ConditionTrue, "KubeletHas"+p.yes, "kubelet has "+p.yesText))
		} else {
			out = append(out, cond(p.kind, v1.ConditionFalse, "KubeletHas"+p.no, "kubelet has "+p.noText))
		}
	}
	why := notReady(rt, rtErr)
	if r.cfg.Trouble != nil && r.cfg.Trouble() != "" {
		why = append(why, r.cfg.Trouble())
	}
	if len(why) > 0 {
		return append(out, cond(v1.NodeReady, v1.ConditionFalse, "KubeletNotReady", aggregate(why)))
	}
	return append(out, cond(v1.NodeReady, v1.ConditionTrue, "KubeletReady", "kubelet is posting ready status"))
}

// aggregate joins several errors as upstream does.
func aggregate(list []string) string {
	if len(list) == 1 {
		return list[0]
	}
	return "[" + strings.Join(list, ", ") + "]"
}

// notReady returns why the runtime cannot run pods; nothing if it can.
func notReady(rt *runtimeapi.StatusResponse, rtErr error) []string {
	if rtErr != nil {
		return []string{"container runtime is down: " + rtErr.Error()}
	}
	if rt == nil {
		return []string{"container runtime status check may not have completed yet"}
	}
	var why []string
	for _, name := range []string{runtimeapi.RuntimeReady, runtimeapi.NetworkReady} {
		what := "container runtime not ready"
		if name == runtimeapi.NetworkReady {
			what = "container runtime network not ready"
		}
		i := slices.IndexFunc(rt.GetStatus().GetConditions(), func(c *runtimeapi.RuntimeCondition) bool { return c.Type == name })
		if i < 0 {
			why = append(why, fmt.Sprintf("%s: %s condition not set", what, name))
			continue
		}
		if c := rt.Status.Conditions[i]; !c.Status {
			why = append(why, fmt.Sprintf("%s: %s=%v reason:%v message:%v", what, name, c.Status, c.Reason, c.Message))
		}
	}
	return why
}

// imageList returns the largest images, sorted by size.
func imageList(imgs []*runtimeapi.Image, most int) []v1.ContainerImage {
	imgs = slices.Clone(imgs)
	slices.SortStableFunc(imgs, func(a, b *runtimeapi.Image) int {
		return cmp.Or(cmp.Compare(b.Size, a.Size), cmp.Compare(a.Id, b.Id))
	})
	if most >= 0 && len(imgs) > most {
		imgs = imgs[:most]
	}
	var out []v1.ContainerImage
	for _, i := range imgs {
		const maxNames = 5
		names := slices.Concat(i.RepoDigests, i.RepoTags)
		if len(names) > maxNames {
			names = names[:maxNames]
		}
		out = append(out, v1.ContainerImage{Names: names, SizeBytes: int64(i.Size)})
	}
	return out
}

func isExtended(name v1.ResourceName) bool {
	return strings.Contains(string(name), "/") && !strings.Contains(string(name), "kubernetes.io/")
}

// HostIP returns the node's address: the given one, or that of the interface with the default
// route.
func HostIP(given string) ([]string, error) {
	if given != "" && given != "0.0.0.0" && given != "::" {
		var out []string
		for ip := range strings.SplitSeq(given, ",") {
			parsed := net.ParseIP(strings.TrimSpace(ip))
			if parsed == nil {
				return nil, fmt.Errorf("node IP %q is not an IP address", ip)
			}
			out = append(out, parsed.String())
		}
		if len(out) > 2 || len(out) == 2 && (strings.Contains(out[0], ":") == strings.Contains(out[1], ":")) {
			return nil, fmt.Errorf("node IP %q must be one address, or two of different families", given)
		}
		return out, nil
	}
	// A UDP "connection" sends nothing; it makes the kernel choose the source address.
	far := []string{"192.0.2.1:9", "[2001:db8::1]:9"}
	if given == "::" {
		slices.Reverse(far)
	}
	for _, far := range far {
		if c, err := net.Dial("udp", far); err == nil {
			ip := c.LocalAddr().(*net.UDPAddr).IP.String()
			return []string{ip}, c.Close()
		}
	}
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		return nil, err
	}
	for _, a := range addrs {
		if n, ok := a.(*net.IPNet); ok && n.IP.IsGlobalUnicast() {
			return []string{n.IP.String()}, nil
		}
	}
	return []string{"127.0.0.1"}, nil
}
