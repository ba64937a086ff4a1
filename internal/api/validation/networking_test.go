package validation

import (
	"strings"
	"testing"

	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/yaml"

	"wherry.dev/internal/api/defaults"
)

// read makes an object of YAML, strictly.
func read[T any](t *testing.T, text string) *T {
	t.Helper()
	out := new(T)
	if err := yaml.UnmarshalStrict([]byte(text), out); err != nil {
		t.Fatal(err)
	}
	return out
}

// told checks that the errors are those that are wanted, in any order.
func told(t *testing.T, errs field.ErrorList, want []string) {
	t.Helper()
	for _, w := range want {
		found := false
		for _, err := range errs {
			found = found || strings.HasPrefix(err.Error(), w)
		}
		if !found {
			t.Errorf("not told: %s", w)
		}
	}
	if len(errs) != len(want) {
		t.Errorf("%d errors, want %d: %v", len(errs), len(want), errs)
	}
}

// yamlCase is a spec, and what is wrong with it.
type yamlCase struct {
	name, spec string
	want       []string
}

func TestIngress(t *testing.T) {
	paths := func(path string) string {
		return `{rules: [{host: a.example, http: {paths: [` + path + `]}}]}`
	}
	backend := `backend: {service: {name: s, port: {number: 80}}}`
	const at = "spec.rules[0].http.paths[0]."
	for _, tc := range []yamlCase{
		{"fine", paths(`{path: /a, pathType: Prefix, ` + backend + `}`), nil},
		{"a wildcard", `{rules: [{host: "*.example.com"}], defaultBackend: {service: {name: 1s, port: {name: http}}}, tls: [{hosts: ["*.example.com"], secretName: s}]}`, nil},
		{"nothing", `{}`, []string{"spec: Invalid value: null: either `defaultBackend` or `rules` must be specified"}},
		{"an address", `{rules: [{host: 1.2.3.4}]}`, []string{`spec.rules[0].host: Invalid value: "1.2.3.4": must be a DNS name, not an IP address`}},
		{"wildcards", `{rules: [{host: "a.*.b"}], tls: [{hosts: ["*"], secretName: "a b"}]}`, []string{"spec.rules[0].host: Invalid value", "spec.tls[0].hosts[0]: Invalid value", "spec.tls[0].secretName: Invalid value"}},
		{"no paths", `{rules: [{http: {paths: []}}]}`, []string{"spec.rules[0].http.paths: Required value"}},
		{"no type", paths(`{path: /a, ` + backend + `}`), []string{at + "pathType: Required value: pathType must be specified"}},
		{"relative", paths(`{path: a, pathType: Exact, ` + backend + `}`), []string{at + `path: Invalid value: "a": must be an absolute path`}},
		{"relative, as the controller likes", paths(`{path: a, pathType: ImplementationSpecific, ` + backend + `}`), []string{at + `path: Invalid value: "a": must be an absolute path`}},
		{"any, as the controller likes", paths(`{path: /a//../%2f, pathType: ImplementationSpecific, ` + backend + `}`), nil},
		{"steps", paths(`{path: /a//b/./c/../d%2F/.., pathType: Prefix, ` + backend + `}`), []string{
			at + `path: Invalid value: "/a//b/./c/../d%2F/..": must not contain '//'`, at + `path: Invalid value: "/a//b/./c/../d%2F/..": must not contain '/./'`,
			at + `path: Invalid value: "/a//b/./c/../d%2F/..": must not contain '/../'`, at + `path: Invalid value: "/a//b/./c/../d%2F/..": must not contain '%2F'`,
			at + `path: Invalid value: "/a//b/./c/../d%2F/..": cannot end with '/..'`,
		}},
		{"another type", paths(`{path: /a, pathType: Regex, ` + backend + `}`), []string{at + `pathType: Unsupported value: "Regex": supported values: "Exact", "ImplementationSpecific", "Prefix"`}},
		{"no backend", paths(`{path: /a, pathType: Prefix, backend: {}}`), []string{at + `backend: Invalid value: "": resource or service backend is required`}},
		{"two backends", paths(`{path: /a, pathType: Prefix, backend: {resource: {kind: K, name: r}, service: {name: s, port: {number: 1}}}}`), []string{at + `backend: Invalid value: "": cannot set both resource and service backends`}},
		{"a resource", paths(`{path: /a, pathType: Prefix, backend: {resource: {apiGroup: A, kind: "", name: a/b}}}`), []string{
			at + "backend.resource.apiGroup: Invalid value", at + "backend.resource.kind: Required value", at + "backend.resource.name: Invalid value",
		}},
		{"ports", paths(`{path: /a, pathType: Prefix, backend: {service: {name: "", port: {}}}}, {path: /a, pathType: Prefix, backend: {service: {name: A, port: {name: a, number: 1}}}}, {path: /a, pathType: Prefix, backend: {service: {name: a, port: {number: 70000}}}}`), []string{
			at + "backend.service.name: Required value", at + "backend: Required value: port name or number is required",
			"spec.rules[0].http.paths[1].backend.service.name: Invalid value", `spec.rules[0].http.paths[1].backend: Invalid value: "": cannot set both port name & port number`,
			"spec.rules[0].http.paths[2].backend.service.port.number: Invalid value: 70000",
		}},
		{"class", `{ingressClassName: A, rules: [{}]}`, []string{"spec.ingressClassName: Invalid value"}},
	} {
		t.Run(tc.name, func(t *testing.T) { told(t, Ingress(read[networkingv1.Ingress](t, "spec: "+tc.spec)), tc.want) })
	}
}

func TestIngressUpdate(t *testing.T) {
	odd := read[networkingv1.Ingress](t, `spec: {rules: [{host: "*.a", http: {paths: []}}], tls: [{secretName: "a b"}]}`)
	told(t, IngressUpdate(odd, odd), nil)
	told(t, Ingress(odd), []string{"spec.rules[0].http.paths: Required value", "spec.tls[0].secretName: Invalid value"})
	two := read[networkingv1.Ingress](t, `{metadata: {annotations: {kubernetes.io/ingress.class: a}}, spec: {ingressClassName: b, rules: [{}]}}`)
	told(t, Ingress(two), []string{"annotations.kubernetes.io/ingress.class: Invalid value: \"a\": must match `ingressClassName` when both are specified"})
	told(t, IngressUpdate(two, two), nil)
	status := read[networkingv1.Ingress](t, `status: {loadBalancer: {ingress: [{ip: 010.0.0.1}, {hostname: 1.2.3.4}, {hostname: a_b}]}}`)
	told(t, IngressStatusUpdate(status, &networkingv1.Ingress{}), []string{
		"status.loadBalancer.ingress[0].ip: Invalid value", "status.loadBalancer.ingress[1].hostname: Invalid value", "status.loadBalancer.ingress[2].hostname: Invalid value",
	})
	told(t, IngressStatusUpdate(status, status), []string{"status.loadBalancer.ingress[1].hostname: Invalid value", "status.loadBalancer.ingress[2].hostname: Invalid value"})
}

func TestIngressClass(t *testing.T) {
	for _, tc := range []yamlCase{
		{"fine", `{controller: example.com/a, parameters: {kind: K, name: n}}`, nil},
		{"in a namespace", `{controller: example.com/a, parameters: {kind: K, name: n, scope: Namespace, namespace: a}}`, nil},
		{"no domain", `{controller: a}`, []string{"spec.controller: Invalid value"}},
		{"which namespace", `{controller: example.com/a, parameters: {kind: K, name: n, scope: Namespace}}`, []string{"spec.parameters.namespace: Required value: `parameters.scope` is set to 'Namespace'"}},
		{"no namespace", `{controller: example.com/a, parameters: {kind: K, name: n, namespace: a}}`, []string{"spec.parameters.namespace: Forbidden: `parameters.scope` is set to 'Cluster'"}},
		{"scope", `{controller: example.com/a, parameters: {kind: K, name: "", scope: World}}`, []string{"spec.parameters.name: Required value", `spec.parameters.scope: Unsupported value: "World"`}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := read[networkingv1.IngressClass](t, "spec: "+tc.spec)
			defaults.IngressClass(c)
			told(t, IngressClass(c), tc.want)
		})
	}
}

func TestNetworkPolicy(t *testing.T) {
	for _, tc := range []yamlCase{
		{"fine", `{podSelector: {}, ingress: [{ports: [{port: 80, endPort: 90}, {port: http}], from: [{podSelector: {}, namespaceSelector: {}}]}], policyTypes: [Ingress, Egress]}`, nil},
		{"all ports", `{podSelector: {}, egress: [{ports: [{protocol: UDP}]}]}`, nil},
		{"selector", `{podSelector: {matchLabels: {a: "b c"}}}`, []string{"spec.podSelector.matchLabels: Invalid value"}},
		{"protocol", `{podSelector: {}, ingress: [{ports: [{protocol: ICMP, port: 1}]}]}`, []string{`spec.ingress[0].ports[0].protocol: Unsupported value: "ICMP"`}},
		{"ends", `{podSelector: {}, ingress: [{ports: [{endPort: 1}, {port: a, endPort: 1}, {port: 5, endPort: 4}, {port: 0}]}]}`, []string{
			"spec.ingress[0].ports[0].endPort: Invalid value: 1: may not be specified when `port` is not specified",
			"spec.ingress[0].ports[1].endPort: Invalid value: 1: may not be specified when `port` is non-numeric",
			"spec.ingress[0].ports[2].endPort: Invalid value: 4: must be greater than or equal to `port`",
			"spec.ingress[0].ports[3].port: Invalid value: 0",
		}},
		{"peers", `{podSelector: {}, egress: [{to: [{}, {ipBlock: {cidr: 10.0.0.0/8}, podSelector: {}}]}]}`, []string{
			"spec.egress[0].to[0]: Required value: must specify a peer", "spec.egress[0].to[1]: Forbidden: may not specify both ipBlock and another peer",
		}},
		{"blocks", `{podSelector: {}, egress: [{to: [{ipBlock: {cidr: ""}}, {ipBlock: {cidr: 10.0.0.0/33}}, {ipBlock: {cidr: 10.0.0.0/8, except: [10.0.0.0/8, x]}}]}]}`, []string{
			"spec.egress[0].to[0].ipBlock.cidr: Required value", "spec.egress[0].to[1].ipBlock.cidr: Invalid value",
			"spec.egress[0].to[2].ipBlock.except[0]: Invalid value: \"10.0.0.0/8\": must be a strict subset of `cidr`", "spec.egress[0].to[2].ipBlock.except[1]: Invalid value",
		}},
		{"types", `{podSelector: {}, policyTypes: [Both]}`, []string{`spec.policyTypes[0]: Unsupported value: "Both"`}},
		{"too many types", `{podSelector: {}, policyTypes: [Ingress, Egress, Ingress]}`, []string{"spec.policyTypes: Invalid value"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			n := read[networkingv1.NetworkPolicy](t, "spec: "+tc.spec)
			defaults.NetworkPolicy(n)
			told(t, NetworkPolicy(n), tc.want)
		})
	}
	// What was allowed once may stay, wherever it stands.
	old := read[networkingv1.NetworkPolicy](t, `spec: {podSelector: {}, ingress: [{from: [{ipBlock: {cidr: 010.0.0.0/8}}]}]}`)
	moved := read[networkingv1.NetworkPolicy](t, `spec: {podSelector: {}, egress: [{to: [{ipBlock: {cidr: 010.0.0.0/8}}, {ipBlock: {cidr: 011.0.0.0/8}}]}]}`)
	told(t, NetworkPolicyUpdate(moved, old), []string{"spec.egress[0].to[1].ipBlock.cidr: Invalid value"})
}

func TestServiceCIDRAndIPAddress(t *testing.T) {
	for _, tc := range []yamlCase{
		{"one", `{cidrs: [10.0.0.0/8]}`, nil},
		{"one of each family", `{cidrs: [10.0.0.0/8, "fd00::/112"]}`, nil},
		{"none", `{}`, []string{"spec.cidrs: Required value: at least one CIDR required"}},
		{"three", `{cidrs: [10.0.0.0/8, 11.0.0.0/8, 12.0.0.0/8]}`, []string{"spec.cidrs: Invalid value"}},
		{"two of a family", `{cidrs: [10.0.0.0/8, 11.0.0.0/8]}`, []string{"spec.cidrs: Invalid value"}},
		{"not a network", `{cidrs: [10.0.0.1/8]}`, []string{"spec.cidrs[0]: Invalid value"}},
	} {
		t.Run(tc.name, func(t *testing.T) { told(t, ServiceCIDR(read[networkingv1.ServiceCIDR](t, "spec: "+tc.spec)), tc.want) })
	}
	one, two := read[networkingv1.ServiceCIDR](t, `spec: {cidrs: [10.0.0.0/8]}`), read[networkingv1.ServiceCIDR](t, `spec: {cidrs: [10.0.0.0/8, "fd00::/112"]}`)
	other := read[networkingv1.ServiceCIDR](t, `spec: {cidrs: [11.0.0.0/8]}`)
	told(t, ServiceCIDRUpdate(two, one), nil)
	told(t, ServiceCIDRUpdate(one, two), []string{"spec.cidrs: Invalid value"})
	told(t, ServiceCIDRUpdate(other, one), []string{"spec.cidrs[0]: Invalid value"})
	for name, want := range map[string]bool{"10.0.0.1": true, "fd00::1": true, "010.0.0.1": false, "fd00::0:1": false, "a": false} {
		if got := len(IPAddressName(name, false)) == 0; got != want {
			t.Errorf("%s is a name: %v", name, got)
		}
	}
	told(t, IPAddress(&networkingv1.IPAddress{}), []string{"spec.parentRef: Required value"})
	told(t, IPAddress(read[networkingv1.IPAddress](t, `spec: {parentRef: {group: A, resource: "", name: a/b}}`)), []string{
		"spec.parentRef.group: Invalid value", "spec.parentRef.resource: Required value", "spec.parentRef.name: Invalid value",
	})
}
