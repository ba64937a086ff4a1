package resourceclaim

import (
	"maps"
	"slices"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	schedulingv1beta1 "k8s.io/api/scheduling/v1beta1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

func pod(name string, change ...func(*v1.Pod)) *v1.Pod {
	p := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID(name)}}
	for _, f := range change {
		f(p)
	}
	return p
}

// uses has a pod use a claim of its own making; makes, one from a template, which has got a name or not.
func uses(claim string) func(*v1.Pod) {
	return func(p *v1.Pod) {
		p.Spec.ResourceClaims = append(p.Spec.ResourceClaims, v1.PodResourceClaim{Name: claim, ResourceClaimName: &claim})
	}
}

func makes(name, claim string) func(*v1.Pod) {
	return func(p *v1.Pod) {
		p.Spec.ResourceClaims = append(p.Spec.ResourceClaims, v1.PodResourceClaim{Name: name, ResourceClaimTemplateName: new("template")})
		if claim != "" {
			p.Status.ResourceClaimStatuses = append(p.Status.ResourceClaimStatuses, v1.PodResourceClaimStatus{Name: name, ResourceClaimName: &claim})
		}
	}
}

func unneeded(p *v1.Pod) {
	p.Spec.ResourceClaims = append(p.Spec.ResourceClaims, v1.PodResourceClaim{Name: "none", ResourceClaimTemplateName: new("template")})
	p.Status.ResourceClaimStatuses = append(p.Status.ResourceClaimStatuses, v1.PodResourceClaimStatus{Name: "none"})
}

func onNode(p *v1.Pod)  { p.Spec.NodeName = "n" }
func done(p *v1.Pod)    { p.Status.Phase = v1.PodSucceeded }
func deleted(p *v1.Pod) { p.DeletionTimestamp = new(metav1.Now()) }

func its(name string, change ...func(*resourcev1.ResourceClaim)) *resourcev1.ResourceClaim {
	c := &resourcev1.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID(name)}}
	for _, f := range change {
		f(c)
	}
	return c
}

// made is for a claim that was made for a pod, which calls it name.
func made(name, pod string) func(*resourcev1.ResourceClaim) {
	return func(c *resourcev1.ResourceClaim) {
		c.Annotations = map[string]string{resourcev1.PodResourceClaimAnnotation: name}
		c.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: pod, UID: types.UID(pod), Controller: new(true)}}
	}
}

func user(pod string) resourcev1.ResourceClaimConsumerReference {
	return resourcev1.ResourceClaimConsumerReference{Resource: "pods", Name: pod, UID: types.UID(pod)}
}

func reserved(pods ...string) func(*resourcev1.ResourceClaim) {
	return func(c *resourcev1.ResourceClaim) {
		for _, p := range pods {
			c.Status.ReservedFor = append(c.Status.ReservedFor, user(p))
		}
	}
}

func allocated(c *resourcev1.ResourceClaim) { c.Status.Allocation = &resourcev1.AllocationResult{} }
func protected(c *resourcev1.ResourceClaim) { c.Finalizers = []string{"else", resourcev1.Finalizer} }
func ending(c *resourcev1.ResourceClaim)    { c.DeletionTimestamp = new(metav1.Now()) }

func TestPlanForAPod(t *testing.T) {
	for name, tc := range map[string]struct {
		pod    *v1.Pod
		claims []*resourcev1.ResourceClaim
		// want has what is made as +NAME, after which claim of that name, the names that are written as NAME=CLAIM, and
		// what is reserved as !CLAIM.
		want string
	}{
		"claims of its own":                {pod("p", uses("a"), uses("b")), []*resourcev1.ResourceClaim{its("a")}, ""},
		"one from a template":              {pod("p", makes("x", "")), nil, "+x"},
		"made, and not named":              {pod("p", makes("x", "")), []*resourcev1.ResourceClaim{its("c", made("x", "p"))}, "x=c"},
		"made for another pod":             {pod("p", makes("x", "")), []*resourcev1.ResourceClaim{its("c", made("x", "q"))}, "+x"},
		"made under another name":          {pod("p", makes("x", "")), []*resourcev1.ResourceClaim{its("c", made("y", "p"))}, "+x"},
		"made, and ending":                 {pod("p", makes("x", "")), []*resourcev1.ResourceClaim{its("c", made("x", "p"), ending)}, "+x"},
		"named":                            {pod("p", makes("x", "c")), []*resourcev1.ResourceClaim{its("c", made("x", "p"))}, ""},
		"named, and gone":                  {pod("p", makes("x", "c")), nil, "+x(c)"},
		"named, and somebody else's":       {pod("p", makes("x", "c")), []*resourcev1.ResourceClaim{its("c")}, "+x(c)"},
		"one of two is named":              {pod("p", makes("x", "c"), makes("y", "")), []*resourcev1.ResourceClaim{its("c", made("x", "p")), its("d", made("y", "p"))}, "x=c y=d"},
		"not needed":                       {pod("p", unneeded, makes("x", "")), nil, "+x"},
		"of a pod that ends":               {pod("p", makes("x", ""), deleted), nil, ""},
		"of a pod that is over":            {pod("p", makes("x", "c"), done, onNode), nil, ""},
		"bound by somebody":                {pod("p", uses("a"), onNode), []*resourcev1.ResourceClaim{its("a", allocated)}, "!a"},
		"bound, and not allocated":         {pod("p", uses("a"), onNode), []*resourcev1.ResourceClaim{its("a")}, ""},
		"bound and reserved":               {pod("p", uses("a"), onNode), []*resourcev1.ResourceClaim{its("a", allocated, reserved("p"))}, ""},
		"bound, and the claim is deleted":  {pod("p", uses("a"), onNode), []*resourcev1.ResourceClaim{its("a", allocated, ending)}, ""},
		"not bound: the scheduler does it": {pod("p", uses("a")), []*resourcev1.ResourceClaim{its("a", allocated)}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			if got := told(plan(tc.pod, nil, among(tc.claims))); got != tc.want {
				t.Errorf("got %q, want %q", got, tc.want)
			}
		})
	}
}

// among finds claims.
func among(all []*resourcev1.ResourceClaim) around {
	return around{
		named: func(name string) *resourcev1.ResourceClaim {
			if i := slices.IndexFunc(all, func(c *resourcev1.ResourceClaim) bool { return c.Name == name }); i >= 0 {
				return all[i]
			}
			return nil
		},
		owned: func(uid types.UID) (out []*resourcev1.ResourceClaim) {
			for _, c := range all {
				if ref := metav1.GetControllerOf(c); ref != nil && ref.UID == uid {
					out = append(out, c)
				}
			}
			return out
		},
	}
}

// told returns a plan as text.
func told(p podPlan) string {
	var got []string
	for _, m := range p.make {
		if m.named != "" {
			m.named = "(" + m.named + ")"
		}
		got = append(got, "+"+m.name+m.named)
	}
	if p.write {
		for _, name := range slices.Sorted(maps.Keys(p.names)) {
			got = append(got, name+"="+p.names[name])
		}
	}
	for _, r := range p.reserve {
		what := "!" + r.Name
		if r.user.Resource != "pods" {
			what += " for " + r.user.Name
		}
		got = append(got, what)
	}
	return strings.Join(got, " ")
}

// group returns a pod group with claims: NAME=CLAIM for one by its name, NAME for one from the template.
func group(name string, claims ...string) *schedulingv1beta1.PodGroup {
	g := &schedulingv1beta1.PodGroup{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID(name)}}
	for _, c := range claims {
		called, claim, named := strings.Cut(c, "=")
		ref := schedulingv1beta1.PodGroupResourceClaim{Name: called}
		if named {
			ref.ResourceClaimName = &claim
		} else {
			ref.ResourceClaimTemplateName = new("template")
		}
		g.Spec.ResourceClaims = append(g.Spec.ResourceClaims, ref)
	}
	return g
}

// inG has the pod belong to the group g.
func inG(p *v1.Pod) { p.Spec.SchedulingGroup = &v1.PodSchedulingGroup{PodGroupName: new("g")} }

// madeForGroup is for a claim that was made for a group, which calls it x.
func madeForGroup(group string) func(*resourcev1.ResourceClaim) {
	return func(c *resourcev1.ResourceClaim) {
		made("x", group)(c)
		c.OwnerReferences[0].APIVersion, c.OwnerReferences[0].Kind = "scheduling.k8s.io/v1beta1", "PodGroup"
	}
}

func reservedForGroup(name string) func(*resourcev1.ResourceClaim) {
	return func(c *resourcev1.ResourceClaim) {
		c.Status.ReservedFor = append(c.Status.ReservedFor,
			resourcev1.ResourceClaimConsumerReference{APIGroup: "scheduling.k8s.io", Resource: "podgroups", Name: name, UID: types.UID(name)})
	}
}

func TestPlanForAPodOfAGroup(t *testing.T) {
	for name, tc := range map[string]struct {
		pod    *v1.Pod
		group  *schedulingv1beta1.PodGroup
		claims []*resourcev1.ResourceClaim
		want   string
	}{
		"the group has none yet":             {pod("p", inG, makes("x", "")), group("g", "x"), nil, ""},
		"it has one":                         {pod("p", inG, makes("x", "")), group("g", "x"), []*resourcev1.ResourceClaim{its("c", madeForGroup("g"))}, "x=c"},
		"it has one that ends":               {pod("p", inG, makes("x", "")), group("g", "x"), []*resourcev1.ResourceClaim{its("c", madeForGroup("g"), ending)}, ""},
		"another group has one":              {pod("p", inG, makes("x", "")), group("g", "x"), []*resourcev1.ResourceClaim{its("c", madeForGroup("h"))}, ""},
		"the group has none of that name":    {pod("p", inG, makes("x", "")), group("g", "y"), nil, "+x"},
		"the group means one of its own":     {pod("p", inG, makes("x", "")), group("g", "x=c"), nil, "+x"},
		"it is named already":                {pod("p", inG, makes("x", "c")), group("g", "x"), []*resourcev1.ResourceClaim{its("c", madeForGroup("g"))}, ""},
		"named, and replaced":                {pod("p", inG, makes("x", "c")), group("g", "x"), []*resourcev1.ResourceClaim{its("d", madeForGroup("g"))}, "x=d"},
		"bound by somebody":                  {pod("p", inG, makes("x", "c"), onNode), group("g", "x"), []*resourcev1.ResourceClaim{its("c", madeForGroup("g"), allocated)}, "!c for g"},
		"bound, with one that they all name": {pod("p", inG, uses("c"), onNode), group("g", "c=c"), []*resourcev1.ResourceClaim{its("c", allocated)}, "!c for g"},
		"bound, with one that is its own":    {pod("p", inG, uses("c"), onNode), group("g", "x=c"), []*resourcev1.ResourceClaim{its("c", allocated)}, "!c"},
		"reserved for the group":             {pod("p", inG, makes("x", "c"), onNode), group("g", "x"), []*resourcev1.ResourceClaim{its("c", madeForGroup("g"), allocated, reservedForGroup("g"))}, ""},
		"reserved for the last group g": {pod("p", inG, uses("c"), onNode), group("g", "c=c"), []*resourcev1.ResourceClaim{its("c", allocated, reservedForGroup("g"), func(c *resourcev1.ResourceClaim) {
			c.Status.ReservedFor[0].UID = "another"
		})}, "!c for g"},
	} {
		t.Run(name, func(t *testing.T) {
			if got := told(plan(tc.pod, tc.group, among(tc.claims))); got != tc.want {
				t.Errorf("got %q, want %q", got, tc.want)
			}
		})
	}
}

func TestPlanForAGroup(t *testing.T) {
	named := func(claims ...string) *schedulingv1beta1.PodGroup { // NAME=CLAIM, from the template
		g := group("g")
		for _, c := range claims {
			called, claim, _ := strings.Cut(c, "=")
			g.Spec.ResourceClaims = append(g.Spec.ResourceClaims, group("", called).Spec.ResourceClaims...)
			g.Status.ResourceClaimStatuses = append(g.Status.ResourceClaimStatuses, schedulingv1beta1.PodGroupResourceClaimStatus{Name: called, ResourceClaimName: &claim})
		}
		return g
	}
	ends := group("g", "x")
	ends.DeletionTimestamp = new(metav1.Now())
	unneeded := named("x=")
	unneeded.Status.ResourceClaimStatuses[0].ResourceClaimName = nil
	for name, tc := range map[string]struct {
		group  *schedulingv1beta1.PodGroup
		claims []*resourcev1.ResourceClaim
		want   string
	}{
		"without claims":             {group("g"), nil, ""},
		"with somebody else's":       {group("g", "x=c"), nil, ""},
		"with one from a template":   {group("g", "x"), nil, "+x"},
		"made, and not named":        {group("g", "x", "y"), []*resourcev1.ResourceClaim{its("c", madeForGroup("g"))}, "+y x=c"},
		"made for a pod called so":   {group("g", "x"), []*resourcev1.ResourceClaim{its("c", made("x", "p"))}, "+x"},
		"named":                      {named("x=c"), []*resourcev1.ResourceClaim{its("c", madeForGroup("g"))}, ""},
		"named, and gone":            {named("x=c"), nil, "+x(c)"},
		"named, and somebody else's": {named("x=c"), []*resourcev1.ResourceClaim{its("c")}, "+x(c)"},
		"not needed":                 {unneeded, nil, ""},
		"of a group that ends":       {ends, nil, ""},
	} {
		t.Run(name, func(t *testing.T) {
			if got := told(podPlan{making: planGroup(tc.group, among(tc.claims))}); got != tc.want {
				t.Errorf("got %q, want %q", got, tc.want)
			}
		})
	}
}

func TestWhatBecomesOfAClaim(t *testing.T) {
	for name, tc := range map[string]struct {
		claim *resourcev1.ResourceClaim
		gone  []string // pods
		owner bool     // is over
		want  string
	}{
		"its users are there":                   {its("c", allocated, protected, reserved("a", "b")), nil, false, "keeps 2"},
		"one of two is gone":                    {its("c", allocated, protected, reserved("a", "b")), []string{"a"}, false, "keeps 1, frees"},
		"the last one is gone":                  {its("c", allocated, protected, reserved("a", "b")), []string{"a", "b"}, false, "keeps 0, frees, deallocates, unprotects"},
		"allocated by somebody else's means":    {its("c", allocated, reserved("a")), []string{"a"}, false, "keeps 0, frees"},
		"nobody uses it":                        {its("c", allocated, protected), nil, false, "keeps 0"},
		"nobody uses it, and it is deleted":     {its("c", allocated, protected, ending), nil, false, "keeps 0, frees, deallocates, unprotects"},
		"deleted while it is used":              {its("c", allocated, protected, ending, reserved("a")), nil, false, "keeps 1"},
		"deleted before it was allocated":       {its("c", protected, ending), nil, false, "keeps 0, unprotects"},
		"protected, and not allocated yet":      {its("c", protected), nil, false, "keeps 0"},
		"made for a pod that is over":           {its("c", made("x", "a"), allocated, protected, reserved("a")), []string{"a"}, true, "keeps 0, frees, deallocates, unprotects, removes"},
		"made for a pod that is over, not used": {its("c", made("x", "a")), nil, true, "keeps 0, removes"},
		"it is used by others still":            {its("c", made("x", "a"), allocated, protected, reserved("a", "b")), []string{"a"}, true, "keeps 1, frees"},
		"it is deleted already":                 {its("c", made("x", "a"), ending), nil, true, "keeps 0"},
	} {
		t.Run(name, func(t *testing.T) {
			gone := map[resourcev1.ResourceClaimConsumerReference]bool{}
			for _, p := range tc.gone {
				gone[user(p)] = true
			}
			s := settle(tc.claim, gone, tc.owner)
			got := []string{"keeps " + string(rune('0'+len(s.keeps)))}
			for word, is := range map[string]bool{"frees": s.frees, "deallocates": s.deallocate, "unprotects": s.unprotect, "removes": s.remove} {
				if is {
					got = append(got, word)
				}
			}
			want := strings.Split(tc.want, ", ")
			slices.Sort(got)
			slices.Sort(want)
			if !slices.Equal(got, want) {
				t.Errorf("it %q, want %q", got, want)
			}
		})
	}
}

// TestNamesOfClaims: both parts are told from it, however long they are.
func TestNamesOfClaims(t *testing.T) {
	long := strings.Repeat("a", 100)
	for _, tc := range []struct{ pod, claim, want string }{
		{"p", "gpu", "p-gpu-"},
		{long, "gpu", strings.Repeat("a", 54) + "-" + "g"},
		{long, strings.Repeat("b", 50), strings.Repeat("a", 37) + "-" + strings.Repeat("b", 18)},
	} {
		if got := generateName(tc.pod, tc.claim); got != tc.want || len(got) > 58 {
			t.Errorf("%s, %s: %q (%d), want %q", tc.pod, tc.claim, got, len(got), tc.want)
		}
	}
}
