package criconfig

import (
	"net"
	"slices"
	"strconv"
	"strings"

	v1 "k8s.io/api/core/v1"
)

// serviceEnv returns the variables of services: always those of the API server, and those of the
// pod's namespace if enableServiceLinks is on (the default).
func serviceEnv(in EnvInput) []Env {
	links := in.Pod.Spec.EnableServiceLinks == nil || *in.Pod.Spec.EnableServiceLinks
	chosen := map[string]*v1.Service{}
	for _, s := range in.Services {
		if s.Spec.ClusterIP == "" || s.Spec.ClusterIP == v1.ClusterIPNone {
			continue
		}
		api := s.Namespace == v1.NamespaceDefault && s.Name == "kubernetes"
		switch _, taken := chosen[s.Name]; {
		case s.Namespace == in.Pod.Namespace && links:
			chosen[s.Name] = s
		case api && !taken:
			chosen[s.Name] = s
		}
	}
	names := make([]string, 0, len(chosen))
	for name := range chosen {
		names = append(names, name)
	}
	slices.Sort(names)
	var out []Env
	for _, name := range names {
		out = append(out, oneService(chosen[name])...)
	}
	return out
}

func oneService(s *v1.Service) []Env {
	if len(s.Spec.Ports) == 0 {
		return nil
	}
	prefix := envName(s.Name)
	port := strconv.Itoa(int(s.Spec.Ports[0].Port))
	out := []Env{{prefix + "_SERVICE_HOST", s.Spec.ClusterIP}, {prefix + "_SERVICE_PORT", port}}
	for _, p := range s.Spec.Ports {
		if p.Name != "" {
			out = append(out, Env{prefix + "_SERVICE_PORT_" + envName(p.Name), strconv.Itoa(int(p.Port))})
		}
	}
	for i, p := range s.Spec.Ports {
		protocol := strings.ToLower(string(p.Protocol))
		if protocol == "" {
			protocol = "tcp"
		}
		number := strconv.Itoa(int(p.Port))
		url := protocol + "://" + net.JoinHostPort(s.Spec.ClusterIP, number)
		if i == 0 {
			out = append(out, Env{prefix + "_PORT", url})
		}
		one := prefix + "_PORT_" + number + "_" + strings.ToUpper(protocol)
		out = append(out, Env{one, url}, Env{one + "_PROTO", protocol}, Env{one + "_PORT", number}, Env{one + "_ADDR", s.Spec.ClusterIP})
	}
	return out
}

func envName(s string) string { return strings.ToUpper(strings.ReplaceAll(s, "-", "_")) }
