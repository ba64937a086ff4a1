package sim

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"wherry.dev/test/fakecri"
)

// What a container does is the first word of its command.
const (
	daemon  = "daemon"  // runs until it is stopped
	job     = "job"     // succeeds after a while
	crasher = "crasher" // fails after seconds, always
	broken  = "broken"  // cannot be started
	flaky   = "flaky"   // fails as long as there are faults, then becomes a daemon or a job
)

// What a probe's command says.
const (
	well = "well" // passes, except for faults
	sick = "sick" // never passes
)

// configMissing is a config map that is never made.
const configMissing = "missing"

// Images of the simulated registry.
const (
	imagePresent = "img:1"
	imageOther   = "img:2"
	imageMissing = "missing:1"
)

// RandomPod returns a pod with any of the features that a pod can have.
func RandomPod(r *rand.Rand, name string) *v1.Pod {
	g := generator{r}
	pod := &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID("uid-" + name), Generation: 1},
		Spec: v1.PodSpec{
			NodeName: "n1", DNSPolicy: v1.DNSDefault, HostNetwork: g.chance(0.1),
			RestartPolicy:                 pick(r, v1.RestartPolicyAlways, v1.RestartPolicyOnFailure, v1.RestartPolicyNever),
			TerminationGracePeriodSeconds: new(g.r.Int64N(60)),
			EnableServiceLinks:            new(false),
		},
	}
	if !pod.Spec.HostNetwork && g.chance(0.1) {
		pod.Spec.HostUsers = new(false)
	}
	if g.chance(0.15) {
		pod.Spec.ActiveDeadlineSeconds = new(g.r.Int64N(1200) + 1)
	}
	if g.chance(0.1) {
		pod.Spec.ReadinessGates = []v1.PodReadinessGate{{ConditionType: "example.com/gate"}}
	}
	if g.chance(0.1) {
		pod.Spec.Resources = g.resources("40m", "80Mi")
	}
	pod.Spec.Volumes = g.volumes()
	for i := range g.some(4) {
		pod.Spec.InitContainers = append(pod.Spec.InitContainers, g.init(fmt.Sprintf("i%d", i)))
	}
	for i := range 1 + g.some(3) {
		c := g.container(fmt.Sprintf("c%d", i), pick(r, daemon, daemon, daemon, daemon, daemon, daemon, flaky, flaky, job, job, crasher, crasher, broken))
		if g.chance(0.15) {
			g.restartRules(&c)
		}
		pod.Spec.Containers = append(pod.Spec.Containers, c)
	}
	for i, v := range pod.Spec.Volumes {
		pod.Spec.Containers[0].VolumeMounts = append(pod.Spec.Containers[0].VolumeMounts, v1.VolumeMount{
			Name: v.Name, MountPath: fmt.Sprintf("/v%d", i), ReadOnly: v.Image != nil,
		})
	}
	return pod
}

type generator struct{ r *rand.Rand }

func pick[T any](r *rand.Rand, from ...T) T { return from[r.IntN(len(from))] }

func (g generator) chance(p float64) bool { return g.r.Float64() < p }

// some returns a number below n; the larger, the rarer.
func (g generator) some(n int) int { return min(g.r.IntN(n), g.r.IntN(n)) }

func (g generator) volumes() []v1.Volume {
	var out []v1.Volume
	if g.chance(0.3) {
		out = append(out, v1.Volume{Name: "empty", VolumeSource: v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{}}})
	}
	if g.chance(0.2) {
		name := "cm"
		if g.chance(0.1) {
			name = configMissing
		}
		out = append(out, v1.Volume{Name: "config", VolumeSource: v1.VolumeSource{ConfigMap: &v1.ConfigMapVolumeSource{
			LocalObjectReference: v1.LocalObjectReference{Name: name},
		}}})
	}
	if g.chance(0.1) {
		out = append(out, v1.Volume{Name: "labels", VolumeSource: v1.VolumeSource{DownwardAPI: &v1.DownwardAPIVolumeSource{
			Items: []v1.DownwardAPIVolumeFile{{Path: "labels", FieldRef: &v1.ObjectFieldSelector{FieldPath: "metadata.labels"}}},
		}}})
	}
	if g.chance(0.07) {
		out = append(out, v1.Volume{Name: "image", VolumeSource: v1.VolumeSource{Image: &v1.ImageVolumeSource{
			Reference: pick(g.r, imagePresent, imageOther),
		}}})
	}
	return out
}

func (g generator) init(name string) v1.Container {
	if g.chance(0.4) {
		c := g.container("s"+name[1:], pick(g.r, daemon, daemon, daemon, flaky, crasher, job))
		c.RestartPolicy = ptr.To(v1.ContainerRestartPolicyAlways)
		return c
	}
	c := g.container(name, pick(g.r, job, job, job, job, flaky, crasher))
	c.Lifecycle, c.StartupProbe, c.LivenessProbe, c.ReadinessProbe = nil, nil, nil, nil
	if g.chance(0.1) {
		g.restartRules(&c)
	}
	return c
}

func (g generator) restartRules(c *v1.Container) {
	c.RestartPolicy = new(pick(g.r, v1.ContainerRestartPolicyNever, v1.ContainerRestartPolicyOnFailure, v1.ContainerRestartPolicyAlways))
	if *c.RestartPolicy == v1.ContainerRestartPolicyAlways && c.Name[0] == 'i' {
		c.RestartPolicy = ptr.To(v1.ContainerRestartPolicyNever) // otherwise it would be a sidecar
	}
	c.RestartPolicyRules = []v1.ContainerRestartRule{{
		Action: pick(g.r, v1.ContainerRestartRuleActionRestart, v1.ContainerRestartRuleActionRestart, v1.ContainerRestartRuleActionRestartAllContainers),
		ExitCodes: &v1.ContainerRestartRuleOnExitCodes{
			Operator: pick(g.r, v1.ContainerRestartRuleOnExitCodesOpIn, v1.ContainerRestartRuleOnExitCodesOpNotIn), Values: []int32{1, 42},
		},
	}}
}

func (g generator) container(name, nature string) v1.Container {
	c := v1.Container{
		Name: name, Image: imagePresent, Command: []string{nature},
		TerminationMessagePath: "/dev/termination-log", TerminationMessagePolicy: lastWordsPolicy(name),
		ImagePullPolicy: pick(g.r, v1.PullIfNotPresent, v1.PullIfNotPresent, v1.PullAlways),
	}
	switch {
	case g.chance(0.15):
		c.Image = imageOther
	case g.chance(0.03):
		c.Image = imageMissing
	case g.chance(0.02):
		c.Image, c.ImagePullPolicy = imageOther, v1.PullNever
	}
	if g.chance(0.3) {
		c.Resources = *g.resources("10m", "20Mi")
	}
	for _, r := range []v1.ResourceName{v1.ResourceCPU, v1.ResourceMemory} {
		if g.chance(0.2) {
			c.ResizePolicy = append(c.ResizePolicy, v1.ContainerResizePolicy{ResourceName: r, RestartPolicy: v1.RestartContainer})
		}
	}
	if g.chance(0.02) { // the images' user is root
		c.SecurityContext = &v1.SecurityContext{RunAsNonRoot: new(true)}
	}
	g.hooks(&c)
	for kind, p := range []**v1.Probe{&c.StartupProbe, &c.LivenessProbe, &c.ReadinessProbe} {
		if g.chance(0.15) {
			*p = g.probe(&c, asked[kind])
		}
	}
	return c
}

// resources returns limits, and requests equal to them.
func (g generator) resources(cpu, memory string) *v1.ResourceRequirements {
	all := v1.ResourceList{v1.ResourceCPU: resource.MustParse(cpu), v1.ResourceMemory: resource.MustParse(memory)}
	return &v1.ResourceRequirements{Requests: all.DeepCopy(), Limits: all}
}

// refused reports whether the node makes no instance of a container, because it must not be root.
func refused(c *v1.Container) bool { return c.SecurityContext != nil }

func (g generator) hooks(c *v1.Container) {
	l := &v1.Lifecycle{}
	if g.chance(0.2) {
		l.PostStart = g.hook(c, "postStart", g.chance(0.1))
		if l.PostStart.Exec != nil && g.chance(0.1) {
			l.PostStart = &v1.LifecycleHandler{Sleep: &v1.SleepAction{Seconds: g.r.Int64N(10)}}
		}
	}
	if g.chance(0.2) {
		l.PreStop = g.hook(c, "preStop", false)
		if g.chance(0.5) {
			l.PreStop = &v1.LifecycleHandler{Sleep: &v1.SleepAction{Seconds: g.r.Int64N(40) + 1}}
		}
	}
	if g.chance(0.05) {
		l.StopSignal = new(v1.SIGUSR1)
	}
	if *l != (v1.Lifecycle{}) {
		c.Lifecycle = l
	}
}

func (g generator) hook(c *v1.Container, ask string, ill bool) *v1.LifecycleHandler {
	switch protocol := pick(g.r, "exec", "exec", "exec", "exec", "http", "https"); {
	case protocol != "exec":
		d := door{container: c.Name, ask: ask, protocol: protocol, sick: ill}
		if ill { // whatever a hook answers, it has run: only one that cannot be reached fails
			d.protocol = "tcp"
		}
		return &v1.LifecycleHandler{HTTPGet: d.get()}
	case ill:
		return &v1.LifecycleHandler{Exec: &v1.ExecAction{Command: []string{ask, sick}}}
	default:
		return &v1.LifecycleHandler{Exec: &v1.ExecAction{Command: []string{ask, well}}}
	}
}

func (g generator) probe(c *v1.Container, ask string) *v1.Probe {
	p := &v1.Probe{
		PeriodSeconds: 5 + g.r.Int32N(30), FailureThreshold: 1 + g.r.Int32N(3), SuccessThreshold: 1, TimeoutSeconds: 2,
		InitialDelaySeconds: int32(g.some(10)),
	}
	ill := g.chance(0.06)
	switch protocol := pick(g.r, "exec", "exec", "exec", "exec", "http", "http", "http", "https", "tcp", "tcp", "grpc"); {
	case protocol != "exec":
		p.ProbeHandler = door{container: c.Name, ask: ask, protocol: protocol, sick: ill}.probe()
	case ill:
		p.Exec = &v1.ExecAction{Command: []string{ask, sick}}
	default:
		p.Exec = &v1.ExecAction{Command: []string{ask, well}}
	}
	if ask == "readiness" && g.chance(0.3) {
		p.SuccessThreshold = 2
	}
	if ask != "readiness" && g.chance(0.3) {
		p.TerminationGracePeriodSeconds = new(g.r.Int64N(20) + 1)
	}
	return p
}

// fails reports whether a probe or hook of its container never succeeds.
func fails(h v1.ProbeHandler) bool {
	port := 0
	switch {
	case h.Exec != nil:
		return h.Exec.Command[1] == sick
	case h.HTTPGet != nil:
		port = h.HTTPGet.Port.IntValue()
	case h.TCPSocket != nil:
		port = h.TCPSocket.Port.IntValue()
	case h.GRPC != nil:
		port = int(h.GRPC.Port)
	default:
		return false
	}
	return port%10 == 1
}

// hookFails is fails for a hook.
func hookFails(h *v1.LifecycleHandler) bool {
	return h != nil && fails(v1.ProbeHandler{Exec: h.Exec, HTTPGet: h.HTTPGet})
}

// behave decides how an instance behaves, by its command.
func behave(d *dice, faulty bool, name string, attempt uint32, command string) fakecri.Behaviour {
	key := fmt.Sprintf("%s/%d", name, attempt)
	b := fakecri.Behaviour{IgnoreTerm: d.chance(0.1, key+" ignores TERM")}
	if d.chance(0.3, key+" fails when stopped") {
		b.TermCode = 143
	}
	if command == flaky {
		switch {
		case faulty:
			b.RunFor = d.upTo(2*time.Minute, key+" runs for")
			b.ExitCode = int32(d.roll(3, key+" exits with"))
			return b
		case name[0] == 'i':
			command = job
		default:
			command = daemon
		}
	}
	switch command {
	case job:
		b.RunFor = d.upTo(time.Minute, key+" runs for")
		if faulty && d.chance(0.1, key+" takes long") {
			b.RunFor = d.upTo(15*time.Minute, key+" runs long")
		}
	case broken:
		b.StartErr = errors.New("exec: no such file or directory")
	case crasher:
		b.RunFor, b.ExitCode = d.upTo(3*time.Second, key+" runs for"), []int32{1, 42, 3}[d.roll(3, name+" exits with")]
	}
	return b
}
