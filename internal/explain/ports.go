package explain

import (
	"fmt"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"wherry.dev/internal/api/report"
)

// ports explains ports that lead to none of the pods' ports.
func (e *serving) ports(live []*v1.Pod) {
	for _, p := range e.Service.Spec.Ports {
		e.port(p, live)
	}
}

func (e *serving) port(p v1.ServicePort, live []*v1.Pod) {
	target, proto := targetOf(p), protocol(p.Protocol)
	var without []*v1.Pod
	for _, pod := range live {
		if _, ok := resolve(target, proto, pod); !ok {
			without = append(without, pod)
		}
	}
	if len(without) == 0 {
		return
	}
	have := declared(without[0])
	if target.Type == intstr.Int && len(have) == 0 {
		return // ports need not be declared
	}
	w := report.Wait{Step: "target of port " + portText(p), Next: "targetPort is a port that a container listens on"}
	switch wrong := otherProtocol(target, proto, without[0]); {
	case wrong != "":
		w.Said = fmt.Sprintf("wrong protocol: the port of %s is %s, and the service's is %s", named(without), wrong, proto)
		w.Next = "the service's port has the protocol of the container's"
	case target.Type == intstr.String:
		w.Said = fmt.Sprintf("no container of %s names a port %q; %s", named(without), target.StrVal, said(have))
		w.Next = "targetPort is the name of a container's port, or a number"
	default:
		w.Said = fmt.Sprintf("no container of %s declares port %d; %s", named(without), target.IntVal, said(have))
		w.Next += " (one that is not declared works, too, if something listens there)"
	}
	if len(without) < len(live) || target.Type == intstr.Int { // what listens need not be declared
		e.doubts = append(e.doubts, w)
		return
	}
	e.wait(w)
}

func said(have []string) string {
	if len(have) == 0 {
		return "it declares none"
	}
	return "declared are " + strings.Join(have, ", ")
}

// targetOf returns the port of the pods to which a port leads: the same one, if it names none.
func targetOf(p v1.ServicePort) intstr.IntOrString {
	if p.TargetPort.Type == intstr.Int && p.TargetPort.IntVal == 0 {
		return intstr.FromInt32(p.Port)
	}
	return p.TargetPort
}

func portText(p v1.ServicePort) string {
	target := targetOf(p)
	return fmt.Sprintf("%d/%s → %s", p.Port, protocol(p.Protocol), target.String())
}

// resolve returns the number of a target port in a pod, if one of its containers has it.
func resolve(target intstr.IntOrString, proto v1.Protocol, p *v1.Pod) (int32, bool) {
	for _, c := range serves(p) {
		for _, cp := range c.Ports {
			if protocol(cp.Protocol) == proto && isTarget(target, cp) {
				return cp.ContainerPort, true
			}
		}
	}
	return 0, false
}

func isTarget(target intstr.IntOrString, cp v1.ContainerPort) bool {
	if target.Type == intstr.Int {
		return cp.ContainerPort == target.IntVal
	}
	return cp.Name == target.StrVal
}

// otherProtocol returns the protocol with which a container has the port, if it is another one.
func otherProtocol(target intstr.IntOrString, proto v1.Protocol, p *v1.Pod) v1.Protocol {
	for _, c := range serves(p) {
		for _, cp := range c.Ports {
			if got := protocol(cp.Protocol); got != proto && isTarget(target, cp) {
				return got
			}
		}
	}
	return ""
}

// declared returns the ports of a pod's containers.
func declared(p *v1.Pod) (out []string) {
	for _, c := range serves(p) {
		for _, cp := range c.Ports {
			text := fmt.Sprintf("%d/%s", cp.ContainerPort, protocol(cp.Protocol))
			if cp.Name != "" {
				text += " (" + cp.Name + ")"
			}
			out = append(out, text)
		}
	}
	return out
}
