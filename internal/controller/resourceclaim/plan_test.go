package resourceclaim

import (
	"maps"
	"slices"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
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
			byName := map[string]*resourcev1.ResourceClaim{}
			var owned []*resourcev1.ResourceClaim
			for _, c := range tc.claims {
				byName[c.Name] = c
				if metav1.IsControlledBy(c, tc.pod) {
					owned = append(owned, c)
				}
			}
			p := plan(tc.pod, func(name string) *resourcev1.ResourceClaim { return byName[name] }, owned)
			var got []string
			for _, m := range p.make {
				if m.named != "" {
					m.named = "(" + m.named + ")"
				}
				got = append(got, "+"+m.Name+m.named)
			}
			if p.write {
				for _, name := range slices.Sorted(maps.Keys(p.names)) {
					got = append(got, name+"="+p.names[name])
				}
			}
			for _, c := range p.reserve {
				got = append(got, "!"+c.Name)
			}
			if strings.Join(got, " ") != tc.want {
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
