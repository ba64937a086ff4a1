package rbac

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
)

// rule reads a rule from words: verbs, API groups ("core" is the one without a name),
// resources, and names.
func rule(verbs, groups, resources string, names ...string) rbacv1.PolicyRule {
	gs := strings.Fields(groups)
	for i := range gs {
		gs[i] = strings.TrimPrefix(gs[i], "core")
	}
	return rbacv1.PolicyRule{Verbs: strings.Fields(verbs), APIGroups: gs, Resources: strings.Fields(resources), ResourceNames: names}
}

func urls(verbs string, paths ...string) rbacv1.PolicyRule {
	return rbacv1.PolicyRule{Verbs: strings.Fields(verbs), NonResourceURLs: paths}
}

// ask reads a request from words: "get pods/log name", "get apps:deployments name", or
// "get /healthz" for a path.
func ask(who user.Info, namespace, request string) authorizer.Attributes {
	words := append(strings.Fields(request), "")
	a := authorizer.AttributesRecord{User: who, Verb: words[0], Namespace: namespace}
	if strings.HasPrefix(words[1], "/") {
		a.Path = words[1]
		return a
	}
	a.ResourceRequest, a.Name = true, words[2]
	resource := words[1]
	if group, rest, ok := strings.Cut(resource, ":"); ok {
		a.APIGroup, resource = group, rest
	}
	a.Resource, a.Subresource, _ = strings.Cut(resource, "/")
	return a
}

func TestWhatARuleAllows(t *testing.T) {
	for _, tc := range []struct {
		name     string
		rule     rbacv1.PolicyRule
		yes, not []string
	}{
		{"verb", rule("get list", "core", "pods"), []string{"get pods p", "list pods"}, []string{"watch pods", "create pods", "GET pods"}},
		{"any verb", rule("*", "core", "pods"), []string{"get pods p", "escalate pods p"}, []string{"get services s"}},
		{"group", rule("get", "apps", "deployments"), []string{"get apps:deployments d"}, []string{"get deployments d", "get extensions:deployments d"}},
		{"core is not all", rule("get", "core", "pods"), []string{"get pods p"}, []string{"get metrics.k8s.io:pods p"}},
		{"any group", rule("get", "*", "pods"), []string{"get pods p", "get metrics.k8s.io:pods p"}, []string{"get services s"}},
		{"several groups", rule("get", "apps core", "pods"), []string{"get pods p", "get apps:pods p"}, []string{"get batch:pods p"}},
		{"a resource is not its subresources", rule("get", "core", "pods"), []string{"get pods p"}, []string{"get pods/log p", "get pods/status p"}},
		{"a subresource is not the resource", rule("get", "core", "pods/log"), []string{"get pods/log p"}, []string{"get pods p", "get pods/status p", "get services/log s"}},
		{"a subresource of all", rule("get", "core", "*/scale"), []string{"get pods/scale p", "get x/scale y"}, []string{"get scale p", "get pods p", "get pods/status p"}},
		{"any resource", rule("get", "core", "*"), []string{"get pods p", "get pods/log p", "get anything x"}, []string{"get apps:pods p"}},
		{"no star within", rule("get", "core", "pods/* po*"), nil, []string{"get pods p", "get pods/log p"}},
		{"names", rule("get update delete", "core", "configmaps", "a", "b"), []string{"get configmaps a", "update configmaps b"}, []string{"get configmaps c", "delete configmaps"}},
		{"names and create", rule("create", "core", "configmaps", "a"), nil, []string{"create configmaps"}},
		{"names and list", rule("list watch", "core", "configmaps", "a"), []string{"list configmaps a", "watch configmaps a"}, []string{"list configmaps", "watch configmaps"}},
		{"no star in names", rule("get", "core", "configmaps", "*"), nil, []string{"get configmaps a"}},
		{"paths", urls("get", "/healthz", "/version"), []string{"get /healthz", "get /version"}, []string{"post /healthz", "get /healthz/etcd", "get /version/", "get /metrics"}},
		{"paths below", urls("get", "/healthz/*"), []string{"get /healthz/etcd", "get /healthz/a/b", "get /healthz/"}, []string{"get /healthz", "get /healthzz"}},
		{"paths that begin so", urls("get", "/log*"), []string{"get /logs", "get /logs/x", "get /log"}, []string{"get /lo"}},
		{"any path", urls("*", "*"), []string{"get /healthz", "post /x/y"}, []string{"get pods p"}},
		{"no star within a path", urls("get", "/api/*/pods"), nil, []string{"get /api/v1/pods"}},
		{"resources are no paths", rule("*", "*", "*"), []string{"get pods p"}, []string{"get /healthz"}},
		{"nothing", rbacv1.PolicyRule{}, nil, []string{"get pods p", "get /healthz"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			for want, requests := range map[bool][]string{true: tc.yes, false: tc.not} {
				for _, r := range requests {
					if got := Allows(&tc.rule, ask(&user.DefaultInfo{Name: "jane"}, "ns", r)); got != want {
						t.Errorf("%q: %t, want %t", r, got, want)
					}
				}
			}
		})
	}
}

func to(kind, name string) rbacv1.Subject {
	s := rbacv1.Subject{Kind: kind, APIGroup: rbacv1.GroupName, Name: name}
	if kind == rbacv1.ServiceAccountKind {
		s.APIGroup = ""
		s.Namespace, s.Name, _ = strings.Cut(name, "/")
	}
	return s
}

// role returns a role called r; bindings are called b.
func role(namespace string, rules ...rbacv1.PolicyRule) *rbacv1.Role {
	return &rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "r"}, Rules: rules}
}

func clusterRole(name string, rules ...rbacv1.PolicyRule) *rbacv1.ClusterRole {
	return &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: name}, Rules: rules}
}

// labelled returns a cluster role that others collect by its label.
func labelled(name, label string, rules ...rbacv1.PolicyRule) *rbacv1.ClusterRole {
	r := clusterRole(name, rules...)
	r.Labels = map[string]string{label: "true"}
	return r
}

// collecting adds an aggregation rule for each label.
func collecting(r *rbacv1.ClusterRole, labels ...string) *rbacv1.ClusterRole {
	r.AggregationRule = &rbacv1.AggregationRule{}
	for _, l := range labels {
		selector := metav1.LabelSelector{MatchLabels: map[string]string{l: "true"}}
		r.AggregationRule.ClusterRoleSelectors = append(r.AggregationRule.ClusterRoleSelectors, selector)
	}
	return r
}

// bind binds subjects to the role or cluster role r.
func bind(namespace, kind string, subjects ...rbacv1.Subject) *rbacv1.RoleBinding {
	return &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "b"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: kind, Name: "r"}, Subjects: subjects,
	}
}

func bindAll(roleName string, subjects ...rbacv1.Subject) *rbacv1.ClusterRoleBinding {
	return &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "b"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: roleName}, Subjects: subjects,
	}
}

func indexOf(objects ...any) *Index {
	x := NewIndex()
	for _, o := range objects {
		switch o := o.(type) {
		case *rbacv1.Role:
			x.SetRole(o)
		case *rbacv1.ClusterRole:
			x.SetClusterRole(o)
		case *rbacv1.RoleBinding:
			x.SetRoleBinding(o)
		case *rbacv1.ClusterRoleBinding:
			x.SetClusterRoleBinding(o)
		default:
			panic(fmt.Sprintf("%T", o))
		}
	}
	return x
}

func decide(t *testing.T, x *Index, who user.Info, namespace, request string) (bool, string) {
	t.Helper()
	decision, reason, err := NewAuthorizer(x).Authorize(t.Context(), ask(who, namespace, request))
	if err != nil || decision == authorizer.DecisionDeny {
		t.Fatalf("%q: %v, %v", request, decision, err) // RBAC has no opinion where it does not allow
	}
	return decision == authorizer.DecisionAllow, reason
}

func TestWhomABindingIsFor(t *testing.T) {
	jane := &user.DefaultInfo{Name: "jane", Groups: []string{"dev"}}
	account := &user.DefaultInfo{Name: "system:serviceaccount:ns:sa", Groups: []string{"system:serviceaccounts", "system:serviceaccounts:ns"}}
	read := rule("get", "core", "pods")
	for name, tc := range map[string]struct {
		who       user.Info
		namespace string
		objects   []any
		reason    string // "" means refused
	}{
		"user everywhere": {jane, "ns", []any{clusterRole("r", read), bindAll("r", to("User", "jane"))},
			`RBAC: allowed by ClusterRoleBinding "b" of ClusterRole "r" to User "jane"`},
		"user in the cluster": {jane, "", []any{clusterRole("r", read), bindAll("r", to("User", "jane"))},
			`RBAC: allowed by ClusterRoleBinding "b" of ClusterRole "r" to User "jane"`},
		"another user": {jane, "ns", []any{clusterRole("r", read), bindAll("r", to("User", "joe"))}, ""},
		"group": {jane, "ns", []any{clusterRole("r", read), bindAll("r", to("Group", "dev"))},
			`RBAC: allowed by ClusterRoleBinding "b" of ClusterRole "r" to Group "dev"`},
		"a group of the user's name": {jane, "ns", []any{clusterRole("r", read), bindAll("r", to("Group", "jane"))}, ""},
		"a user of the group's name": {jane, "ns", []any{clusterRole("r", read), bindAll("r", to("User", "dev"))}, ""},
		"role in its namespace": {jane, "ns", []any{role("ns", read), bind("ns", "Role", to("User", "jane"))},
			`RBAC: allowed by RoleBinding "b/ns" of Role "r" to User "jane"`},
		"role in another namespace":            {jane, "other", []any{role("ns", read), bind("ns", "Role", to("User", "jane"))}, ""},
		"role binding, cluster request":        {jane, "", []any{role("ns", read), bind("ns", "Role", to("User", "jane"))}, ""},
		"role of another namespace":            {jane, "ns", []any{role("other", read), bind("ns", "Role", to("User", "jane"))}, ""},
		"cluster role, bound in a namespace":   {jane, "ns", []any{clusterRole("r", read), bind("ns", "ClusterRole", to("User", "jane"))}, `RBAC: allowed by RoleBinding "b/ns" of ClusterRole "r" to User "jane"`},
		"cluster role, bound in another":       {jane, "ns", []any{clusterRole("r", read), bind("other", "ClusterRole", to("User", "jane"))}, ""},
		"a role that is not there":             {jane, "ns", []any{bind("ns", "Role", to("User", "jane")), bindAll("r", to("User", "jane"))}, ""},
		"a cluster role is no role":            {jane, "ns", []any{clusterRole("r", read), bind("ns", "Role", to("User", "jane"))}, ""},
		"service account":                      {account, "ns", []any{clusterRole("r", read), bindAll("r", to("ServiceAccount", "ns/sa"))}, `RBAC: allowed by ClusterRoleBinding "b" of ClusterRole "r" to ServiceAccount "sa/ns"`},
		"service account of another":           {account, "ns", []any{clusterRole("r", read), bindAll("r", to("ServiceAccount", "other/sa"))}, ""},
		"service account, as user":             {account, "ns", []any{clusterRole("r", read), bindAll("r", to("User", "system:serviceaccount:ns:sa"))}, `RBAC: allowed by ClusterRoleBinding "b" of ClusterRole "r" to User "system:serviceaccount:ns:sa"`},
		"service account, by its namespace":    {account, "x", []any{clusterRole("r", read), bindAll("r", to("Group", "system:serviceaccounts:ns"))}, `RBAC: allowed by ClusterRoleBinding "b" of ClusterRole "r" to Group "system:serviceaccounts:ns"`},
		"service account bound from elsewhere": {account, "ns2", []any{role("ns2", read), bind("ns2", "Role", to("ServiceAccount", "ns/sa"))}, `RBAC: allowed by RoleBinding "b/ns2" of Role "r" to ServiceAccount "sa/ns"`},
		"nobody":                               {jane, "ns", []any{clusterRole("r", read), bindAll("r")}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			if _, got := decide(t, indexOf(tc.objects...), tc.who, tc.namespace, "get pods p"); got != tc.reason {
				t.Errorf("reason %q, want %q", got, tc.reason)
			}
		})
	}
}

// wantRights compares the rights of jane, who has the cluster role "all".
func wantRights(t *testing.T, x *Index, want map[string]bool) {
	t.Helper()
	x.SetClusterRoleBinding(bindAll("all", to("User", "jane")))
	for request, want := range want {
		if got, _ := decide(t, x, &user.DefaultInfo{Name: "jane"}, "ns", request); got != want {
			t.Errorf("%q: %t, want %t", request, got, want)
		}
	}
}

// TestTheRulesOfAnAggregatedRoleAreThoseWrittenInIt: they are what users see, and one truth.
func TestTheRulesOfAnAggregatedRoleAreThoseWrittenInIt(t *testing.T) {
	pods, nodes := rule("get", "core", "pods"), rule("get", "core", "nodes")
	wantRights(t, indexOf(collecting(clusterRole("all", pods), "x"), labelled("a", "x", nodes)),
		map[string]bool{"get pods": true, "get nodes": false})
}

// TestTheIndexFollows checks that the index follows changes and deletions.
func TestTheIndexFollows(t *testing.T) {
	jane := &user.DefaultInfo{Name: "jane"}
	x := indexOf(role("ns", rule("get", "core", "pods")), bind("ns", "Role", to("User", "jane"), to("User", "jane")),
		clusterRole("c", rule("get", "core", "nodes")), bindAll("c", to("User", "jane")))
	key := types.NamespacedName{Namespace: "ns", Name: "r"}
	check := func(step string, pods, nodes bool) {
		t.Helper()
		gotPods, _ := decide(t, x, jane, "ns", "get pods")
		gotNodes, _ := decide(t, x, jane, "ns", "get nodes")
		if gotPods != pods || gotNodes != nodes {
			t.Errorf("%s: pods %t, nodes %t", step, gotPods, gotNodes)
		}
	}
	check("at first", true, true)
	x.SetRole(role("ns", rule("list", "core", "pods")))
	check("changed role", false, true)
	x.SetRole(role("ns", rule("get", "core", "pods")))
	x.DeleteRole(key)
	check("deleted role", false, true)
	x.SetRole(role("ns", rule("get", "core", "pods")))
	x.SetRoleBinding(bind("ns", "Role", to("User", "joe")))
	check("bound to another", false, true)
	x.SetRoleBinding(bind("ns", "Role", to("User", "joe"), to("User", "jane")))
	check("bound to both", true, true)
	x.DeleteBinding(types.NamespacedName{Namespace: "ns", Name: "b"})
	check("deleted binding, another of its name", false, true)
	x.DeleteClusterRole(types.NamespacedName{Name: "c"})
	check("deleted cluster role", false, false)
	x.SetClusterRole(clusterRole("c", rule("get", "core", "nodes")))
	x.DeleteBinding(types.NamespacedName{Name: "b"})
	check("deleted cluster binding", false, false)
	if len(x.bySubject)+len(x.bindings) > 0 {
		t.Errorf("left in the index: %v, %v", x.bySubject, x.bindings)
	}
}

func TestRulesOfAUser(t *testing.T) {
	x := indexOf(role("ns", rule("get", "core", "pods")), bind("ns", "Role", to("User", "jane")),
		role("other", rule("get", "core", "secrets")), bind("other", "Role", to("User", "jane")),
		clusterRole("c", rule("get", "core", "nodes", "n1"), urls("get", "/metrics")), bindAll("c", to("Group", "dev")))
	resources, paths, incomplete, err := NewAuthorizer(x).RulesFor(t.Context(), &user.DefaultInfo{Name: "jane", Groups: []string{"dev"}}, "ns")
	if err != nil || incomplete {
		t.Fatal(incomplete, err)
	}
	var got []string
	for _, r := range resources {
		got = append(got, fmt.Sprint(r.GetVerbs(), r.GetAPIGroups(), r.GetResources(), r.GetResourceNames()))
	}
	for _, r := range paths {
		got = append(got, fmt.Sprint(r.GetVerbs(), r.GetNonResourceURLs()))
	}
	if want := []string{"[get] [] [nodes] [n1]", "[get] [] [pods] []", "[get] [/metrics]"}; !slices.Equal(got, want) {
		t.Errorf("rules %q, want %q", got, want)
	}
}

func TestRulesOfARoleReference(t *testing.T) {
	pods := rule("get", "core", "pods")
	x := indexOf(role("ns", pods), collecting(clusterRole("all"), "x"), labelled("a", "x", pods))
	for _, tc := range []struct {
		kind, name, namespace string
		rules                 int
		ok                    bool
	}{
		{"Role", "r", "ns", 1, true},
		{"Role", "r", "other", 0, false},
		{"Role", "a", "ns", 0, false},
		{"ClusterRole", "a", "ns", 1, true},
		{"ClusterRole", "all", "", 0, true},
		{"ClusterRole", "r", "ns", 0, false},
	} {
		rules, ok := x.Role(rbacv1.RoleRef{Kind: tc.kind, Name: tc.name}, tc.namespace)
		if ok != tc.ok || len(rules) != tc.rules {
			t.Errorf("%s %s in %q: %v, %t", tc.kind, tc.name, tc.namespace, rules, ok)
		}
	}
}
