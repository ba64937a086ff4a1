package validation

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"wherry.dev/internal/api/pods"
)

// podContext is what the parts of a pod are checked against.
type podContext struct {
	*problems
	spec    *corev1.PodSpec
	volumes map[string]*corev1.Volume // only valid ones
	claims  []string
}

func (c *podContext) hostUsers() bool { return c.spec.HostUsers == nil || *c.spec.HostUsers }

func (c *podContext) containers(at path) {
	spec := c.spec
	if len(spec.Containers) == 0 {
		c.required(at, "")
		return
	}
	names := map[string]bool{}
	hostPorts := map[string]bool{}
	for i := range spec.Containers {
		ctr, at := &spec.Containers[i], at.Index(i)
		c.container(at, ctr)
		c.uniqueName(at, ctr.Name, names)
		c.handlers(at, ctr)
		c.restartPolicy(at, ctr)
		c.hostPorts(at, ctr, hostPorts)
	}
}

func (c *podContext) uniqueName(at path, name string, names map[string]bool) {
	if names[name] {
		c.add(field.Duplicate(at.Child("name"), name))
	}
	if name != "" {
		names[name] = true
	}
}

func (c *podContext) initContainers(at path) {
	names := map[string]bool{}
	for i := range c.spec.Containers {
		names[c.spec.Containers[i].Name] = true
	}
	for i := range c.spec.InitContainers {
		ctr, at := &c.spec.InitContainers[i], at.Index(i)
		c.container(at, ctr)
		c.restartPolicy(at, ctr)
		c.uniqueName(at, ctr.Name, names)
		c.hostPorts(at, ctr, map[string]bool{}) // init containers run one after another
		if pods.IsSidecar(ctr) {
			c.handlers(at, ctr)
			continue
		}
		const only = "may not be set for init containers without restartPolicy=Always"
		for _, f := range []setField{
			{"lifecycle", ctr.Lifecycle != nil},
			{"livenessProbe", ctr.LivenessProbe != nil},
			{"readinessProbe", ctr.ReadinessProbe != nil},
			{"startupProbe", ctr.StartupProbe != nil},
		} {
			if f.set {
				c.forbidden(at.Child(f.name), only)
			}
		}
		for j, p := range ctr.ResizePolicy {
			if p.RestartPolicy == corev1.RestartContainer {
				c.invalid(at.Child("resizePolicy").Index(j).Child("restartPolicy"), p.RestartPolicy, "must not be set to 'RestartContainer' for non-sidecar initContainers")
			}
		}
	}
}

func (c *podContext) ephemeralContainers(at path) {
	names := map[string]bool{}
	for ctr := range pods.Containers(c.spec) {
		names[ctr.Name] = true
	}
	targets := make(map[string]bool, len(names))
	for name := range names {
		targets[name] = true
	}
	for i := range c.spec.EphemeralContainers {
		e, at := &c.spec.EphemeralContainers[i], at.Index(i)
		ctr := (*corev1.Container)(&e.EphemeralContainerCommon)
		c.container(at, ctr)
		c.imageWithoutSpace(at, ctr)
		c.uniqueName(at, e.Name, names)
		if e.TargetContainerName != "" && !targets[e.TargetContainerName] {
			c.add(field.NotFound(at.Child("targetContainerName"), e.TargetContainerName))
		}
		c.ephemeralFields(at, ctr)
	}
}

// ephemeralFields reports fields that make no sense for a container that is added to a running pod
// and never restarted.
func (c *podContext) ephemeralFields(at path, ctr *corev1.Container) {
	const cannot = "cannot be set for an Ephemeral Container"
	fields := []struct {
		name string
		set  bool
	}{
		{"ports", len(ctr.Ports) > 0},
		{"resources", len(ctr.Resources.Limits)+len(ctr.Resources.Requests)+len(ctr.Resources.Claims) > 0},
		{"resizePolicy", len(ctr.ResizePolicy) > 0},
		{"restartPolicy", ctr.RestartPolicy != nil},
		{"restartPolicyRules", len(ctr.RestartPolicyRules) > 0},
		{"livenessProbe", ctr.LivenessProbe != nil},
		{"readinessProbe", ctr.ReadinessProbe != nil},
		{"startupProbe", ctr.StartupProbe != nil},
		{"lifecycle", ctr.Lifecycle != nil},
	}
	for _, f := range fields {
		if f.set {
			c.forbidden(at.Child(f.name), cannot)
		}
	}
	for i, m := range ctr.VolumeMounts {
		at := at.Child("volumeMounts").Index(i)
		if m.SubPath != "" {
			c.forbidden(at.Child("subPath"), cannot)
		}
		if m.SubPathExpr != "" {
			c.forbidden(at.Child("subPathExpr"), cannot)
		}
	}
}

// container checks what all kinds of containers have in common.
func (c *podContext) container(at path, ctr *corev1.Container) {
	if c.present(at.Child("name"), ctr.Name) {
		c.label(at.Child("name"), ctr.Name)
	}
	c.present(at.Child("image"), ctr.Image)
	oneOfRequired(c.problems, at.Child("terminationMessagePolicy"), ctr.TerminationMessagePolicy,
		corev1.TerminationMessageReadFile, corev1.TerminationMessageFallbackToLogsOnError)
	c.ports(at.Child("ports"), ctr.Ports)
	c.env(at.Child("env"), ctr.Env)
	c.envFrom(at.Child("envFrom"), ctr.EnvFrom)
	c.mounts(at.Child("volumeMounts"), ctr)
	c.devices(at.Child("volumeDevices"), ctr)
	c.pullPolicy(at.Child("imagePullPolicy"), ctr.ImagePullPolicy)
	c.requirements(at.Child("resources"), &ctr.Resources, c.claims, c.containerResourceName)
	c.resizePolicy(at.Child("resizePolicy"), ctr.ResizePolicy)
	c.securityContext(at.Child("securityContext"), ctr.SecurityContext)
}

func (p *problems) pullPolicy(at path, policy corev1.PullPolicy) {
	oneOfRequired(p, at, policy, corev1.PullAlways, corev1.PullIfNotPresent, corev1.PullNever)
}

func (c *podContext) imageWithoutSpace(at path, ctr *corev1.Container) {
	if strings.TrimSpace(ctr.Image) != ctr.Image {
		c.invalid(at.Child("image"), ctr.Image, "must not have leading or trailing whitespace")
	}
}

func (c *podContext) ports(at path, ports []corev1.ContainerPort) {
	names := map[string]bool{}
	for i, port := range ports {
		at := at.Index(i)
		if port.Name != "" {
			if messages := utilvalidation.IsValidPortName(port.Name); len(messages) > 0 {
				matches(c.problems, at.Child("name"), port.Name, messages)
			} else if names[port.Name] {
				c.add(field.Duplicate(at.Child("name"), port.Name))
			}
			names[port.Name] = true
		}
		if port.ContainerPort == 0 {
			c.required(at.Child("containerPort"), "")
		} else {
			c.portNumber(at.Child("containerPort"), port.ContainerPort)
		}
		if port.HostPort != 0 {
			c.portNumber(at.Child("hostPort"), port.HostPort)
		}
		oneOfRequired(c.problems, at.Child("protocol"), port.Protocol, protocols...)
	}
}

var protocols = []corev1.Protocol{corev1.ProtocolTCP, corev1.ProtocolUDP, corev1.ProtocolSCTP}

// hostPorts reports ports of the host that are requested twice.
func (c *podContext) hostPorts(at path, ctr *corev1.Container, seen map[string]bool) {
	for i, port := range ctr.Ports {
		if port.HostPort == 0 {
			continue
		}
		key := fmt.Sprintf("%s/%s/%d", port.Protocol, port.HostIP, port.HostPort)
		if seen[key] {
			c.add(field.Duplicate(at.Child("ports").Index(i).Child("hostPort"), key))
		}
		seen[key] = true
	}
}

func (c *podContext) resizePolicy(at path, policies []corev1.ContainerResizePolicy) {
	seen := map[corev1.ResourceName]bool{}
	for i, p := range policies {
		if seen[p.ResourceName] {
			c.add(field.Duplicate(at.Index(i), p.ResourceName))
		}
		seen[p.ResourceName] = true
		oneOfRequired(c.problems, at, p.ResourceName, corev1.ResourceCPU, corev1.ResourceMemory)
		oneOfRequired(c.problems, at, p.RestartPolicy, corev1.NotRequired, corev1.RestartContainer)
		if c.spec.RestartPolicy == corev1.RestartPolicyNever && p.RestartPolicy != corev1.NotRequired {
			c.invalid(at, p.RestartPolicy, "must be 'NotRequired' when pod `restartPolicy` is 'Never'")
		}
	}
}

const (
	maxRestartRules     = 20
	maxRestartExitCodes = 255
)

// restartPolicy checks a container's own policy and rules (KEP-5307).
func (c *podContext) restartPolicy(at path, ctr *corev1.Container) {
	if ctr.RestartPolicy == nil {
		if len(ctr.RestartPolicyRules) > 0 {
			c.required(at.Child("restartPolicy"), "must specify restartPolicy when restart rules are used")
		} else {
			return
		}
	} else {
		oneOf(c.problems, at.Child("restartPolicy"), *ctr.RestartPolicy,
			corev1.ContainerRestartPolicyAlways, corev1.ContainerRestartPolicyNever, corev1.ContainerRestartPolicyOnFailure)
	}
	if n := len(ctr.RestartPolicyRules); n > maxRestartRules {
		c.add(field.TooMany(at.Child("restartPolicyRules"), n, maxRestartRules))
	}
	for i, rule := range ctr.RestartPolicyRules {
		at := at.Child("restartPolicyRules").Index(i)
		oneOf(c.problems, at.Child("action"), rule.Action, corev1.ContainerRestartRuleActionRestart, corev1.ContainerRestartRuleActionRestartAllContainers)
		if rule.ExitCodes == nil {
			c.required(at.Child("exitCodes"), "must be specified")
			continue
		}
		at = at.Child("exitCodes")
		oneOf(c.problems, at.Child("operator"), rule.ExitCodes.Operator,
			corev1.ContainerRestartRuleOnExitCodesOpIn, corev1.ContainerRestartRuleOnExitCodesOpNotIn)
		if n := len(rule.ExitCodes.Values); n > maxRestartExitCodes {
			c.add(field.TooMany(at.Child("values"), n, maxRestartExitCodes))
		}
	}
}
