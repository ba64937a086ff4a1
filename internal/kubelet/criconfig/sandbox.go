package criconfig

import (
	"fmt"
	"maps"
	"path/filepath"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	sysctl "k8s.io/component-helpers/node/util/sysctl"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"wherry.dev/internal/api/pods"
)

// SandboxInput is what a sandbox's configuration depends on.
type SandboxInput struct {
	Pod     *v1.Pod
	Attempt uint32
	LogRoot string
	// CgroupParent of the pod; empty if the runtime decides.
	CgroupParent  string
	DNS           *runtimeapi.DNSConfig
	ClusterDomain string
	Dirs          Dirs
	// UserNS has the IDs of a pod with a user namespace of its own.
	UserNS *runtimeapi.UserNamespace
	CFS    CFS
	// Sysctls that the node gives to all pods.
	Sysctls map[string]string
	// Overhead of the pod's RuntimeClass is in Pod.Spec.Overhead.
}

// Sandbox returns the configuration of a pod's sandbox.
func Sandbox(in SandboxInput) (*runtimeapi.PodSandboxConfig, error) {
	pod := in.Pod
	labels := maps.Clone(pod.Labels)
	if labels == nil {
		labels = map[string]string{}
	}
	labels[pods.LabelPodName], labels[pods.LabelPodNamespace], labels[pods.LabelPodUID] = pod.Name, pod.Namespace, string(pod.UID)
	annotations := maps.Clone(pod.Annotations)
	if annotations == nil {
		annotations = map[string]string{}
	}
	annotations[pods.AnnotationPodGrace] = fmt.Sprint(pods.Grace(pod))
	cfg := &runtimeapi.PodSandboxConfig{
		Metadata: &runtimeapi.PodSandboxMetadata{
			Name: pod.Name, Namespace: pod.Namespace, Uid: string(pod.UID), Attempt: in.Attempt,
		},
		LogDirectory: LogDir(in.LogRoot, pod),
		DnsConfig:    in.DNS,
		Labels:       labels,
		Annotations:  annotations,
	}
	if !pod.Spec.HostNetwork {
		hostname, domain, err := Hostname(pod, in.ClusterDomain)
		if err != nil {
			return nil, err
		}
		if cfg.Hostname, err = shownHostname(pod, hostname, domain); err != nil {
			return nil, err
		}
	}
	cfg.PortMappings = portMappings(pod)
	linux, err := linuxSandbox(in)
	cfg.Linux = linux
	return cfg, err
}

// Hostname returns a pod's hostname and, with a subdomain, its domain.
func Hostname(pod *v1.Pod, clusterDomain string) (hostname, domain string, err error) {
	hostname = pod.Name
	if o := pod.Spec.HostnameOverride; o != nil {
		if msgs := validation.IsDNS1123Subdomain(*o); len(msgs) > 0 {
			return "", "", fmt.Errorf("pod HostnameOverride %q is not a valid DNS subdomain: %s", *o, strings.Join(msgs, ";"))
		}
		return cutHostname(*o), "", nil
	}
	if pod.Spec.Hostname != "" {
		if msgs := validation.IsDNS1123Label(pod.Spec.Hostname); len(msgs) > 0 {
			return "", "", fmt.Errorf("pod Hostname %q is not a valid DNS label: %s", pod.Spec.Hostname, strings.Join(msgs, ";"))
		}
		hostname = pod.Spec.Hostname
	}
	hostname = cutHostname(hostname)
	if pod.Spec.Subdomain != "" {
		if msgs := validation.IsDNS1123Label(pod.Spec.Subdomain); len(msgs) > 0 {
			return "", "", fmt.Errorf("pod Subdomain %q is not a valid DNS label: %s", pod.Spec.Subdomain, strings.Join(msgs, ";"))
		}
		domain = pod.Spec.Subdomain + "." + pod.Namespace + ".svc." + clusterDomain
	}
	return hostname, domain, nil
}

// cutHostname truncates a name to the length that the kernel accepts.
func cutHostname(name string) string {
	const longest = 63
	if len(name) <= longest {
		return name
	}
	return strings.TrimRight(name[:longest], "-.")
}

// shownHostname returns what the kernel's hostname is set to.
func shownHostname(pod *v1.Pod, hostname, domain string) (string, error) {
	if domain == "" || pod.Spec.SetHostnameAsFQDN == nil || !*pod.Spec.SetHostnameAsFQDN {
		return hostname, nil
	}
	const maxKernel = 64
	fqdn := hostname + "." + domain
	if len(fqdn) > maxKernel {
		return "", fmt.Errorf("failed to construct FQDN from pod hostname and cluster domain, FQDN %s is too long (%d characters is the max, %d characters requested)", fqdn, maxKernel, len(fqdn))
	}
	return fqdn, nil
}

func portMappings(pod *v1.Pod) []*runtimeapi.PortMapping {
	var out []*runtimeapi.PortMapping
	for c := range pods.Containers(&pod.Spec) {
		for _, p := range c.Ports {
			out = append(out, &runtimeapi.PortMapping{
				Protocol: criProtocol(p.Protocol), ContainerPort: p.ContainerPort, HostPort: p.HostPort, HostIp: p.HostIP,
			})
		}
	}
	return out
}

func criProtocol(p v1.Protocol) runtimeapi.Protocol {
	switch p {
	case v1.ProtocolUDP:
		return runtimeapi.Protocol_UDP
	case v1.ProtocolSCTP:
		return runtimeapi.Protocol_SCTP
	default:
		return runtimeapi.Protocol_TCP
	}
}

func linuxSandbox(in SandboxInput) (*runtimeapi.LinuxPodSandboxConfig, error) {
	pod := in.Pod
	namespaces, err := Namespaces(pod, in.UserNS)
	if err != nil {
		return nil, err
	}
	sc := &runtimeapi.LinuxSandboxSecurityContext{
		Privileged:       anyPrivileged(pod),
		NamespaceOptions: namespaces,
		Seccomp:          &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_RuntimeDefault},
	}
	cfg := &runtimeapi.LinuxPodSandboxConfig{
		CgroupParent: in.CgroupParent, SecurityContext: sc, Sysctls: sysctls(pod, in.Sysctls),
	}
	cfg.Overhead, cfg.Resources = SandboxResources(pod, in.CFS)
	psc := pod.Spec.SecurityContext
	if psc == nil {
		return cfg, nil
	}
	if psc.RunAsUser != nil {
		sc.RunAsUser = &runtimeapi.Int64Value{Value: *psc.RunAsUser}
	}
	if psc.RunAsGroup != nil && psc.RunAsUser != nil {
		sc.RunAsGroup = &runtimeapi.Int64Value{Value: *psc.RunAsGroup}
	}
	if psc.FSGroup != nil {
		sc.SupplementalGroups = append(sc.SupplementalGroups, *psc.FSGroup)
	}
	sc.SupplementalGroups = append(sc.SupplementalGroups, psc.SupplementalGroups...)
	sc.SupplementalGroupsPolicy = groupsPolicy(psc)
	sc.SelinuxOptions = selinux(psc.SELinuxOptions)
	if psc.SeccompProfile != nil {
		sc.Seccomp = seccomp(psc.SeccompProfile, in.Dirs.Seccomp())
	}
	return cfg, nil
}

// sysctls returns the sysctls that the pod sets, in addition to those that the node sets for all
// pods (KEP-5996). The pod's own take precedence. The node's own namespaces stay as they are.
func sysctls(pod *v1.Pod, all map[string]string) map[string]string {
	out := map[string]string{}
	for name, value := range all {
		ns, name, _ := sysctl.GetNamespace(name)
		hosts := map[sysctl.Namespace]bool{
			sysctl.IPCNamespace: pod.Spec.HostIPC, sysctl.NetNamespace: pod.Spec.HostNetwork,
			sysctl.UTSNamespace: pod.Spec.HostNetwork, sysctl.UserNamespace: !OwnUsers(pod),
		}
		if own, known := hosts[ns]; known && !own {
			out[name] = value
		}
	}
	if psc := pod.Spec.SecurityContext; psc != nil {
		for _, s := range psc.Sysctls {
			out[sysctl.NormalizeName(s.Name)] = s.Value
		}
	}
	return out
}

// OwnUsers reports whether the pod asks for a user namespace of its own.
func OwnUsers(pod *v1.Pod) bool { return pod.Spec.HostUsers != nil && !*pod.Spec.HostUsers }

// Namespaces returns which namespaces the pod shares with the node or keeps for
// itself; users has the IDs of a user namespace of its own.
func Namespaces(pod *v1.Pod, users *runtimeapi.UserNamespace) (*runtimeapi.NamespaceOption, error) {
	n := &runtimeapi.NamespaceOption{
		Network: runtimeapi.NamespaceMode_POD, Ipc: runtimeapi.NamespaceMode_POD, Pid: runtimeapi.NamespaceMode_CONTAINER,
	}
	if pod.Spec.HostNetwork {
		n.Network = runtimeapi.NamespaceMode_NODE
	}
	if pod.Spec.HostIPC {
		n.Ipc = runtimeapi.NamespaceMode_NODE
	}
	if share := pod.Spec.ShareProcessNamespace; share != nil && *share {
		n.Pid = runtimeapi.NamespaceMode_POD
	}
	if pod.Spec.HostPID {
		n.Pid = runtimeapi.NamespaceMode_NODE
	}
	if n.UsernsOptions = users; users == nil {
		if OwnUsers(pod) {
			return nil, fmt.Errorf("pod %s has no ID range for its user namespace", pods.Format(pod))
		}
		n.UsernsOptions = &runtimeapi.UserNamespace{Mode: runtimeapi.NamespaceMode_NODE}
	}
	return n, nil
}

func anyPrivileged(pod *v1.Pod) bool {
	for c := range pods.Containers(&pod.Spec) {
		if sc := c.SecurityContext; sc != nil && sc.Privileged != nil && *sc.Privileged {
			return true
		}
	}
	return false
}

func groupsPolicy(psc *v1.PodSecurityContext) runtimeapi.SupplementalGroupsPolicy {
	if psc.SupplementalGroupsPolicy != nil && *psc.SupplementalGroupsPolicy == v1.SupplementalGroupsPolicyStrict {
		return runtimeapi.SupplementalGroupsPolicy_Strict
	}
	return runtimeapi.SupplementalGroupsPolicy_Merge
}

func selinux(o *v1.SELinuxOptions) *runtimeapi.SELinuxOption {
	if o == nil {
		return nil
	}
	return &runtimeapi.SELinuxOption{User: o.User, Role: o.Role, Type: o.Type, Level: o.Level}
}

func seccomp(p *v1.SeccompProfile, dir string) *runtimeapi.SecurityProfile {
	switch p.Type {
	case v1.SeccompProfileTypeRuntimeDefault:
		return &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_RuntimeDefault}
	case v1.SeccompProfileTypeLocalhost:
		ref := ""
		if p.LocalhostProfile != nil {
			ref = filepath.Join(dir, *p.LocalhostProfile)
		}
		return &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_Localhost, LocalhostRef: ref}
	default:
		return &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_Unconfined}
	}
}
