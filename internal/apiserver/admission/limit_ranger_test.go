package admission

import (
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/admission"
)

// amounts reads a resource list from words: "cpu=1 memory=1Gi".
func amounts(words string) corev1.ResourceList {
	if words == "" {
		return nil
	}
	out := corev1.ResourceList{}
	for w := range strings.FieldsSeq(words) {
		name, q, _ := strings.Cut(w, "=")
		out[corev1.ResourceName(name)] = resource.MustParse(q)
	}
	return out
}

func containerOf(name, requests, limits string) corev1.Container {
	return corev1.Container{Name: name, Resources: corev1.ResourceRequirements{Requests: amounts(requests), Limits: amounts(limits)}}
}

func limitedPod(containers ...corev1.Container) *corev1.Pod {
	return &corev1.Pod{Spec: corev1.PodSpec{Containers: containers}}
}

func TestLimitRangeBounds(t *testing.T) {
	minimum := func(kind corev1.LimitType, words string) corev1.LimitRangeItem {
		return corev1.LimitRangeItem{Type: kind, Min: amounts(words)}
	}
	maximum := func(kind corev1.LimitType, words string) corev1.LimitRangeItem {
		return corev1.LimitRangeItem{Type: kind, Max: amounts(words)}
	}
	ratio := func(kind corev1.LimitType, words string) corev1.LimitRangeItem {
		return corev1.LimitRangeItem{Type: kind, MaxLimitRequestRatio: amounts(words)}
	}
	withInit := limitedPod(containerOf("c", "cpu=1", "cpu=1"))
	withInit.Spec.InitContainers = []corev1.Container{containerOf("i", "cpu=3", "cpu=3")}
	with := limitedPod(containerOf("c", "cpu=1", "cpu=1"))
	with.Spec.Overhead = amounts("cpu=1")
	const c, p = corev1.LimitTypeContainer, corev1.LimitTypePod
	for name, tc := range map[string]struct {
		item corev1.LimitRangeItem
		pod  *corev1.Pod
		want string
	}{
		"at the minimum":        {minimum(c, "cpu=100m"), limitedPod(containerOf("c", "cpu=100m", "")), ""},
		"below the minimum":     {minimum(c, "cpu=100m"), limitedPod(containerOf("c", "cpu=99m", "")), "minimum cpu usage per Container is 100m, but request is 99m"},
		"limit below":           {minimum(c, "cpu=100m"), limitedPod(containerOf("c", "cpu=100m", "cpu=50m")), "minimum cpu usage per Container is 100m, but limit is 50m"},
		"no request":            {minimum(c, "cpu=100m"), limitedPod(containerOf("c", "", "")), "minimum cpu usage per Container is 100m.  No request is specified"},
		"at the maximum":        {maximum(c, "cpu=1"), limitedPod(containerOf("c", "cpu=1", "cpu=1")), ""},
		"above the maximum":     {maximum(c, "cpu=1"), limitedPod(containerOf("c", "cpu=1", "cpu=1001m")), "maximum cpu usage per Container is 1, but limit is 1001m"},
		"request above":         {maximum(c, "cpu=1"), limitedPod(containerOf("c", "cpu=2", "cpu=1")), "maximum cpu usage per Container is 1, but request is 2"},
		"no limit":              {maximum(c, "cpu=1"), limitedPod(containerOf("c", "cpu=1", "")), "maximum cpu usage per Container is 1.  No limit is specified"},
		"any container":         {maximum(c, "cpu=1"), limitedPod(containerOf("a", "", "cpu=1"), containerOf("b", "", "cpu=2")), "maximum cpu usage per Container is 1, but limit is 2"},
		"init containers":       {maximum(c, "cpu=2"), withInit, "maximum cpu usage per Container is 2, but limit is 3"},
		"at the ratio":          {ratio(c, "cpu=2"), limitedPod(containerOf("c", "cpu=1", "cpu=2")), ""},
		"above the ratio":       {ratio(c, "cpu=1500m"), limitedPod(containerOf("c", "cpu=1", "cpu=2")), "cpu max limit to request ratio per Container is 1500m, but provided ratio is 2.000000"},
		"ratio, no request":     {ratio(c, "cpu=2"), limitedPod(containerOf("c", "", "cpu=2")), "cpu max limit to request ratio per Container is 2, but no request is specified or request is 0"},
		"ratio, no limit":       {ratio(c, "cpu=2"), limitedPod(containerOf("c", "cpu=1", "")), "cpu max limit to request ratio per Container is 2, but no limit is specified or limit is 0"},
		"pod adds up":           {maximum(p, "cpu=2"), limitedPod(containerOf("a", "", "cpu=1"), containerOf("b", "", "cpu=1100m")), "maximum cpu usage per Pod is 2, but limit is 2100m"},
		"pod's minimum":         {minimum(p, "memory=1Gi"), limitedPod(containerOf("a", "memory=512Mi", ""), containerOf("b", "memory=512Mi", "")), ""},
		"pod, the largest init": {maximum(p, "cpu=2"), withInit, "maximum cpu usage per Pod is 2, but limit is 3"},
		"pod without overhead":  {maximum(p, "cpu=1"), with, ""},
		"claims are not pods":   {maximum(corev1.LimitTypePersistentVolumeClaim, "storage=1"), limitedPod(containerOf("c", "", "")), ""},
	} {
		t.Run(name, func(t *testing.T) {
			got := ""
			for _, err := range checkPod(&tc.item, tc.pod) {
				got += err.Error()
			}
			if got != tc.want {
				t.Errorf("%q, want %q", got, tc.want)
			}
		})
	}
}

func TestLimitRangeOfClaims(t *testing.T) {
	item := corev1.LimitRangeItem{Type: corev1.LimitTypePersistentVolumeClaim, Min: amounts("storage=1Gi"), Max: amounts("storage=5Gi")}
	for size, want := range map[string]string{
		"storage=1Gi": "", "storage=5Gi": "",
		"storage=1Mi": "minimum storage usage per PersistentVolumeClaim is 1Gi, but request is 1Mi",
		"storage=6Gi": "maximum storage usage per PersistentVolumeClaim is 5Gi, but request is 6Gi",
		"":            "minimum storage usage per PersistentVolumeClaim is 1Gi.  No request is specifiedmaximum storage usage per PersistentVolumeClaim is 5Gi.  No request is specified",
	} {
		claim := claimWith(func(c *corev1.PersistentVolumeClaim) { c.Spec.Resources.Requests = amounts(size) })
		got := ""
		for _, err := range checkClaim(&item, claim) {
			got += err.Error()
		}
		if got != want {
			t.Errorf("%s: %q, want %q", size, got, want)
		}
	}
}

func TestLimitRangeDefaults(t *testing.T) {
	items := []corev1.LimitRangeItem{
		{Type: corev1.LimitTypePod, Default: amounts("cpu=9")}, // pods have no defaults
		{Type: corev1.LimitTypeContainer, Default: amounts("cpu=2 memory=2Gi"), DefaultRequest: amounts("cpu=1 memory=1Gi")},
	}
	pod := limitedPod(containerOf("a", "", ""), containerOf("b", "cpu=500m", "cpu=3 memory=3Gi"), containerOf("c", "cpu=1 memory=1", "cpu=1 memory=1"))
	pod.Spec.InitContainers = []corev1.Container{containerOf("i", "memory=1", "cpu=1")}
	setDefaults(pod, items)
	for i, want := range []corev1.Container{
		containerOf("a", "cpu=1 memory=1Gi", "cpu=2 memory=2Gi"),
		containerOf("b", "cpu=500m memory=1Gi", "cpu=3 memory=3Gi"),
		containerOf("c", "cpu=1 memory=1", "cpu=1 memory=1"),
		containerOf("i", "cpu=1 memory=1", "cpu=1 memory=2Gi"),
	} {
		got := slices.Concat(pod.Spec.Containers, pod.Spec.InitContainers)[i]
		for name, q := range want.Resources.Requests {
			if have := got.Resources.Requests[name]; have.Cmp(q) != 0 {
				t.Errorf("%s requests %s of %s, want %s", want.Name, have.String(), name, q.String())
			}
		}
		for name, q := range want.Resources.Limits {
			if have := got.Resources.Limits[name]; have.Cmp(q) != 0 {
				t.Errorf("%s is limited to %s of %s, want %s", want.Name, have.String(), name, q.String())
			}
		}
	}
	const note = "LimitRanger plugin set: cpu, memory request for container a; cpu, memory limit for container a; memory request for container b; " +
		"cpu request for init container i; memory limit for init container i"
	if got := pod.Annotations["kubernetes.io/limit-ranger"]; got != note {
		t.Errorf("annotation %q, want %q", got, note)
	}
	full := limitedPod(containerOf("c", "cpu=1 memory=1", "cpu=1 memory=1"))
	if setDefaults(full, items); full.Annotations != nil {
		t.Errorf("annotations %v", full.Annotations)
	}
}

func TestWhatALimitRangeAppliesTo(t *testing.T) {
	going := limitedPod()
	going.DeletionTimestamp = &metav1.Time{}
	claim := claimWith(func(*corev1.PersistentVolumeClaim) {})
	for name, tc := range map[string]struct {
		a    admission.Attributes
		want bool
	}{
		"new pod":      {attributes(nil, admission.Create, podsResource, "", limitedPod(), nil), true},
		"changed pod":  {attributes(nil, admission.Update, podsResource, "", limitedPod(), limitedPod()), false},
		"resize":       {attributes(nil, admission.Update, podsResource, "resize", limitedPod(), limitedPod()), true},
		"status":       {attributes(nil, admission.Update, podsResource, "status", limitedPod(), limitedPod()), false},
		"on its way":   {attributes(nil, admission.Update, podsResource, "resize", limitedPod(), going), false},
		"new claim":    {attributes(nil, admission.Create, claimsResource, "", claim, nil), true},
		"larger claim": {attributes(nil, admission.Update, claimsResource, "", claim, claim), true},
		"claim status": {attributes(nil, admission.Update, claimsResource, "status", claim, claim), false},
		"node":         {attributes(nil, admission.Create, nodesResource, "", node("n"), nil), false},
	} {
		if got := (&limitRanger{}).applies(tc.a); got != tc.want {
			t.Errorf("%s: %t", name, got)
		}
	}
}
