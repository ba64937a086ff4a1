package sim

import (
	"fmt"
	"slices"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"wherry.dev/internal/kubelet/objectcache"
)

// Objects that pods refer to. Those that are not in a life's store at first are made later;
// configMissing never is.
const (
	configOne = "cm"
	configTwo = "cm2"
	secretOne = "secret"

	// Keys in them: extra comes and goes, until the faults end.
	keyAlways = "key"
	keyExtra  = "extra"
)

// Registries that want credentials, their images, and pull secrets.
const (
	privateRegistry = "private.example"
	pluginRegistry  = "plugin.example"
	imagePrivate    = privateRegistry + "/img:1"
	imagePlugin     = pluginRegistry + "/img:1"

	pullUser     = "puller"
	pullPassword = "password" // the key under which a store keeps it
	right        = "right"
	wrong        = "wrong"

	pullRight = "pull-right"
	pullWrong = "pull-wrong"
	pullLate  = "pull-late" // is missing or wrong until the faults end
)

// Runtime classes.
const (
	classFast   = "fast"    // its handler exists, and it has an overhead
	classLate   = "late"    // is made when the faults end
	classLost   = "lost"    // never made
	classOrphan = "orphan"  // its handler is not on the node
	handlerFast = "fast-vm" //
)

// envFile is a file that init container i0 writes into the volume "empty".
const (
	envFile    = "env/file"
	envFileKey = "FROM_FILE"
)

// ref names an object of the pod's namespace.
func ref(kind objectcache.Kind, name string) objectcache.Ref {
	return objectcache.Ref{Kind: kind, Namespace: "ns", Name: name}
}

// local gives a pod features that a static pod can have, too.
func (g generator) local(pod *v1.Pod) {
	g.names(pod)
	g.subPaths(pod)
	pod.Spec.EnableServiceLinks = new(g.chance(0.3))
	if g.chance(0.05) {
		c := &pod.Spec.Containers[0]
		c.Ports = append(c.Ports, v1.ContainerPort{ContainerPort: 80, HostPort: portFree, Protocol: v1.ProtocolTCP})
	}
	pod.Spec.SecurityContext = &v1.PodSecurityContext{}
	if g.chance(0.05) {
		pod.Spec.SecurityContext.RunAsUser, pod.Spec.SecurityContext.RunAsNonRoot = new(int64(runAs)), new(true)
	}
	if g.chance(0.05) {
		pod.Spec.SecurityContext.FSGroup = new(int64(runAs))
	}
	if g.chance(0.05) && !pod.Spec.HostNetwork {
		pod.Spec.SecurityContext.Sysctls = []v1.Sysctl{{Name: "net.ipv4.ip_local_port_range", Value: "1024 65535"}}
	}
}

// addObjects gives a pod references to objects of the API.
func (g generator) addObjects(pod *v1.Pod) {
	g.objectVolumes(pod)
	for i := range pod.Spec.InitContainers {
		if g.chance(0.15) {
			g.environment(pod, &pod.Spec.InitContainers[i])
		}
	}
	for i := range pod.Spec.Containers {
		if g.chance(0.25) {
			g.environment(pod, &pod.Spec.Containers[i])
		}
	}
	if g.chance(0.15) {
		g.credentials(pod)
	}
	if g.chance(0.08) && pod.Spec.HostUsers == nil {
		g.runtimeClass(pod)
	}
}

// names sets what the pod is called from within.
func (g generator) names(pod *v1.Pod) {
	if g.chance(0.1) {
		pod.Spec.Hostname = "named"
		if g.chance(0.5) {
			pod.Spec.Subdomain, pod.Spec.SetHostnameAsFQDN = "sub", new(g.chance(0.5))
		}
	}
	if g.chance(0.05) {
		pod.Spec.HostAliases = []v1.HostAlias{{IP: "192.0.2.7", Hostnames: []string{"alias.example"}}}
	}
	if g.chance(0.1) {
		pod.Spec.DNSPolicy = pick(g.r, v1.DNSClusterFirst, v1.DNSClusterFirstWithHostNet, v1.DNSNone)
		if pod.Spec.DNSPolicy == v1.DNSNone || g.chance(0.3) {
			pod.Spec.DNSConfig = &v1.PodDNSConfig{Nameservers: []string{"192.0.2.53"}, Searches: []string{"own.example"}}
		}
	}
	if g.chance(0.05) {
		pod.Spec.ShareProcessNamespace = new(true)
	}
}

// objectVolumes are volumes of secrets, projections and tokens, which live in memory.
func (g generator) objectVolumes(pod *v1.Pod) {
	add := func(name string, src v1.VolumeSource) {
		pod.Spec.Volumes = append(pod.Spec.Volumes, v1.Volume{Name: name, VolumeSource: src})
		c := &pod.Spec.Containers[0]
		c.VolumeMounts = append(c.VolumeMounts, v1.VolumeMount{Name: name, MountPath: "/" + name})
	}
	if g.chance(0.06) {
		add("secret", v1.VolumeSource{Secret: &v1.SecretVolumeSource{SecretName: pick(g.r, secretOne, secretOne, configMissing), Optional: new(true)}})
	}
	if g.chance(0.06) {
		expires := 600 + g.r.Int64N(1200)
		add("token", v1.VolumeSource{Projected: &v1.ProjectedVolumeSource{Sources: []v1.VolumeProjection{
			{ServiceAccountToken: &v1.ServiceAccountTokenProjection{Path: "token", ExpirationSeconds: &expires}},
			{ConfigMap: &v1.ConfigMapProjection{LocalObjectReference: v1.LocalObjectReference{Name: configTwo}, Items: []v1.KeyToPath{{Key: keyAlways, Path: "two"}}}},
			{DownwardAPI: &v1.DownwardAPIProjection{Items: []v1.DownwardAPIVolumeFile{{Path: "name", FieldRef: &v1.ObjectFieldSelector{FieldPath: "metadata.name"}}}}},
		}}})
	}
}

// subPaths mounts a part of the volume "empty", by a name or an expression.
func (g generator) subPaths(pod *v1.Pod) {
	if !hasVolume(pod, "empty") || !g.chance(0.15) {
		return
	}
	c := &pod.Spec.Containers[0]
	m := v1.VolumeMount{Name: "empty", MountPath: "/part", SubPath: "part/of"}
	if g.chance(0.5) {
		m.SubPath, m.SubPathExpr = "", "$(POD)/of"
		c.Env = append(c.Env, v1.EnvVar{Name: "POD", ValueFrom: &v1.EnvVarSource{FieldRef: &v1.ObjectFieldSelector{FieldPath: "metadata.name"}}})
	}
	c.VolumeMounts = append(c.VolumeMounts, m)
}

func hasVolume(pod *v1.Pod, name string) bool {
	return slices.ContainsFunc(pod.Spec.Volumes, func(v v1.Volume) bool { return v.Name == name })
}

// environment gives a container variables of all kinds.
func (g generator) environment(pod *v1.Pod, c *v1.Container) {
	config := func() v1.LocalObjectReference {
		return v1.LocalObjectReference{Name: pick(g.r, configOne, configOne, configTwo)}
	}
	secret := v1.LocalObjectReference{Name: secretOne}
	optional := func() *bool { return new(g.chance(0.3)) }
	key := func() string { return pick(g.r, keyAlways, keyAlways, keyExtra) }
	for range g.some(3) {
		from := v1.EnvFromSource{Prefix: pick(g.r, "", "PRE_", "pre.")}
		if g.chance(0.5) {
			from.ConfigMapRef = &v1.ConfigMapEnvSource{LocalObjectReference: config(), Optional: optional()}
		} else {
			from.SecretRef = &v1.SecretEnvSource{LocalObjectReference: secret, Optional: optional()}
		}
		c.EnvFrom = append(c.EnvFrom, from)
	}
	add := func(name string, from v1.EnvVarSource) {
		c.Env = append(c.Env, v1.EnvVar{Name: name, ValueFrom: &from})
	}
	if g.chance(0.5) {
		add("CONFIG", v1.EnvVarSource{ConfigMapKeyRef: &v1.ConfigMapKeySelector{LocalObjectReference: config(), Key: key(), Optional: optional()}})
	}
	if g.chance(0.5) {
		add("SECRET", v1.EnvVarSource{SecretKeyRef: &v1.SecretKeySelector{LocalObjectReference: secret, Key: key(), Optional: optional()}})
	}
	if g.chance(0.12) {
		missing := v1.LocalObjectReference{Name: configMissing}
		add("MISSING", v1.EnvVarSource{ConfigMapKeyRef: &v1.ConfigMapKeySelector{LocalObjectReference: missing, Key: keyAlways, Optional: optional()}})
	}
	if c.Name[0] == 'c' && hasVolume(pod, "empty") && len(pod.Spec.InitContainers) > 0 && pod.Spec.InitContainers[0].Name == "i0" && g.chance(0.7) {
		add("FILE", v1.EnvVarSource{FileKeyRef: &v1.FileKeySelector{VolumeName: "empty", Path: envFile, Key: envFileKey}})
	}
	if g.chance(0.3) {
		add("UID", v1.EnvVarSource{FieldRef: &v1.ObjectFieldSelector{FieldPath: "metadata.uid"}})
		add("CPUS", v1.EnvVarSource{ResourceFieldRef: &v1.ResourceFieldSelector{Resource: "limits.cpu", Divisor: resource.MustParse("1m")}})
	}
	c.Env = append(c.Env, v1.EnvVar{Name: "ALL", Value: "<$(CONFIG)|$(PRE_key)|$$(SECRET)|$(SECRET)>"})
}

// credentials makes images come from registries that want some.
func (g generator) credentials(pod *v1.Pod) {
	image := pick(g.r, imagePrivate, imagePrivate, imagePrivate, imagePlugin)
	n := 0
	for i := range pod.Spec.Containers {
		if c := &pod.Spec.Containers[i]; c.ImagePullPolicy != v1.PullNever && (n == 0 || g.chance(0.5)) {
			c.Image = image
			n++
		}
	}
	if image == imagePlugin {
		pod.Spec.ServiceAccountName = "default"
		return
	}
	for range 1 + g.some(3) {
		pod.Spec.ImagePullSecrets = append(pod.Spec.ImagePullSecrets, v1.LocalObjectReference{
			Name: pick(g.r, pullRight, pullRight, pullLate, pullLate, pullWrong, configMissing),
		})
	}
}

func (g generator) runtimeClass(pod *v1.Pod) {
	name := pick(g.r, classFast, classFast, classFast, classLate, classLost, classOrphan)
	pod.Spec.RuntimeClassName = &name
	if name == classFast { // as admission by the API server does
		pod.Spec.Overhead = overhead()
	}
}

func overhead() v1.ResourceList {
	return v1.ResourceList{v1.ResourceCPU: resource.MustParse("5m"), v1.ResourceMemory: resource.MustParse("8Mi")}
}

// runAs is the user of pods that name one.
const runAs = 1000

// Host ports: one that another pod has, and one that is free.
const (
	portTaken = 8080
	portFree  = 9090
)

// simNode returns the node as pods are admitted to it.
func simNode(taints []v1.Taint) *v1.Node {
	return &v1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: "n1", Labels: map[string]string{"zone": "here"}}, Spec: v1.NodeSpec{Taints: taints},
		Status: v1.NodeStatus{
			DeclaredFeatures: []string{"RestartAllContainersOnContainerExits"},
			Allocatable: v1.ResourceList{
				v1.ResourceCPU: resource.MustParse("4"), v1.ResourceMemory: resource.MustParse("8Gi"), v1.ResourcePods: resource.MustParse("110"),
			},
		},
	}
}

// otherPod was admitted earlier, and is as important as a pod can be.
func otherPod() *v1.Pod {
	return &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "other", UID: "other"}, Spec: v1.PodSpec{Priority: new(int32(2_000_001_000)), Containers: []v1.Container{{
		Name: "c", Ports: []v1.ContainerPort{{HostPort: portTaken, ContainerPort: 80}},
		Resources: v1.ResourceRequirements{Requests: v1.ResourceList{v1.ResourceCPU: resource.MustParse("1")}},
	}}}}
}

// unwelcome makes the node refuse a pod, and returns the reason.
func (g generator) unwelcome(pod *v1.Pod) string {
	c := &pod.Spec.Containers[0]
	switch g.r.IntN(6) {
	case 0:
		pod.Spec.NodeSelector = map[string]string{"zone": "elsewhere"}
		return "NodeAffinity"
	case 1:
		c.Ports = append(c.Ports, v1.ContainerPort{ContainerPort: 80, HostPort: portTaken})
		return "NodePorts"
	case 2:
		c.Resources, pod.Spec.Resources = *g.resources("3500m", "20Mi"), nil
		return "OutOfcpu"
	case 3:
		pod.Spec.SecurityContext.Sysctls = []v1.Sysctl{{Name: "kernel.msgmax", Value: "1"}}
		return "SysctlForbidden"
	case 4:
		pod.Spec.OS = &v1.PodOS{Name: v1.Windows}
		return "PodOSNotSupported"
	default:
		pod.Labels = map[string]string{v1.LabelOSStable: "windows"}
		return "PodOSSelectorNodeLabelDoesNotMatch"
	}
}

// data returns what an ordinary object holds at its nth version.
func data(name string, n int, extra bool) map[string]string {
	out := map[string]string{keyAlways: fmt.Sprintf("%s v%d", name, n)}
	if extra {
		out[keyExtra] = fmt.Sprintf("%s extra v%d", name, n)
	}
	return out
}
