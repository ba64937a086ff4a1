package admission

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/admission"
)

func TestImagesAreAlwaysPulled(t *testing.T) {
	withImages := func(images ...string) *corev1.Pod {
		return podOn("", func(p *corev1.Pod) {
			for _, image := range images {
				p.Spec.Containers = append(p.Spec.Containers, corev1.Container{Image: image, ImagePullPolicy: corev1.PullNever})
			}
			p.Spec.InitContainers = []corev1.Container{{Image: "init"}}
			p.Spec.Volumes = []corev1.Volume{{VolumeSource: corev1.VolumeSource{Image: &corev1.ImageVolumeSource{}}}}
		})
	}
	pod := withImages("a", "b")
	create := attributes(nil, admission.Create, podsResource, "", pod, nil)
	wantRefusals(t, alwaysPullImages{}.Validate(t.Context(), create, nil), 4)
	if err := (alwaysPullImages{}).Admit(t.Context(), create, nil); err != nil {
		t.Fatal(err)
	}
	for _, policy := range []corev1.PullPolicy{
		pod.Spec.Containers[0].ImagePullPolicy, pod.Spec.Containers[1].ImagePullPolicy,
		pod.Spec.InitContainers[0].ImagePullPolicy, pod.Spec.Volumes[0].Image.PullPolicy,
	} {
		if policy != corev1.PullAlways {
			t.Errorf("policy %q", policy)
		}
	}
	wantRefusals(t, alwaysPullImages{}.Validate(t.Context(), create, nil), 0)
	same := attributes(nil, admission.Update, podsResource, "", withImages("b"), withImages("a", "b"))
	wantRefusals(t, alwaysPullImages{}.Validate(t.Context(), same, nil), 0)
	other := attributes(nil, admission.Update, podsResource, "", withImages("c"), withImages("a"))
	wantRefusals(t, alwaysPullImages{}.Validate(t.Context(), other, nil), 3)
	status := attributes(nil, admission.Update, podsResource, "status", withImages("c"), withImages("a"))
	wantRefusals(t, alwaysPullImages{}.Validate(t.Context(), status, nil), 0)
}

func wantRefusals(t *testing.T, err error, want int) {
	t.Helper()
	got := 0
	if err != nil {
		got = 1
		if many, ok := err.(interface{ Errors() []error }); ok {
			got = len(many.Errors())
		}
	}
	if got != want {
		t.Errorf("%d refusals, want %d: %v", got, want, err)
	}
}

func TestOnlyNodesAreHeldAlone(t *testing.T) {
	apart := func(keys ...string) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			anti := &corev1.PodAntiAffinity{PreferredDuringSchedulingIgnoredDuringExecution: []corev1.WeightedPodAffinityTerm{
				{PodAffinityTerm: corev1.PodAffinityTerm{TopologyKey: "zone"}},
			}}
			for _, key := range keys {
				anti.RequiredDuringSchedulingIgnoredDuringExecution = append(anti.RequiredDuringSchedulingIgnoredDuringExecution, corev1.PodAffinityTerm{TopologyKey: key})
			}
			p.Spec.Affinity = &corev1.Affinity{PodAntiAffinity: anti}
		}
	}
	for _, tc := range []struct {
		pod  *corev1.Pod
		want string
	}{
		{podOn(""), ""},
		{podOn("", apart()), ""},
		{podOn("", apart(corev1.LabelHostname)), ""},
		{podOn("", apart(corev1.LabelHostname, "zone")),
			"affinity.PodAntiAffinity.RequiredDuringScheduling has TopologyKey zone but only key kubernetes.io/hostname is allowed"},
	} {
		a := attributes(nil, admission.Create, podsResource, "", tc.pod, nil)
		wantRefusal(t, a, limitPodHardAntiAffinityTopology{}.Validate(t.Context(), a, nil), tc.want)
	}
}

func TestDevicesAreTolerated(t *testing.T) {
	const device, other = "example.com/b", "example.com/a"
	pod := limitedPod(containerOf("c", device+"=1 cpu=1 hugepages-2Mi=2Mi", ""))
	pod.Spec.InitContainers = []corev1.Container{containerOf("i", other+"=1 kubernetes.io/x=1", "")}
	exists := func(key string) corev1.Toleration {
		return corev1.Toleration{Key: key, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoSchedule}
	}
	pod.Spec.Tolerations = []corev1.Toleration{exists(device)}
	a := attributes(nil, admission.Create, podsResource, "", pod, nil)
	if err := (extendedResourceToleration{}).Admit(t.Context(), a, nil); err != nil {
		t.Fatal(err)
	}
	if want := []corev1.Toleration{exists(device), exists(other)}; !apiequality.Semantic.DeepEqual(pod.Spec.Tolerations, want) {
		t.Errorf("tolerations %v", pod.Spec.Tolerations)
	}
}

func TestExternalAddressesMayStayButNotCome(t *testing.T) {
	service := func(ips ...string) *corev1.Service {
		return &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "s"}, Spec: corev1.ServiceSpec{ExternalIPs: ips}}
	}
	for name, tc := range map[string]struct {
		is, was *corev1.Service
		ok      bool
	}{
		"new without":  {service(), nil, true},
		"new with":     {service("192.0.2.1"), nil, false},
		"kept":         {service("192.0.2.1"), service("192.0.2.1", "192.0.2.2"), true},
		"another":      {service("192.0.2.3"), service("192.0.2.1"), false},
		"one more":     {service("192.0.2.1", "192.0.2.3"), service("192.0.2.1"), false},
		"none anymore": {service(), service("192.0.2.1"), true},
	} {
		a := attributes(nil, admission.Create, servicesResource, "", tc.is, nil)
		if tc.was != nil {
			a = attributes(nil, admission.Update, servicesResource, "", tc.is, tc.was)
		}
		want := "Use of external IPs is denied by admission control"
		if tc.ok {
			want = ""
		}
		t.Run(name, func(t *testing.T) { wantRefusal(t, a, denyServiceExternalIPs{}.Validate(t.Context(), a, nil), want) })
	}
}

func TestMergedTolerations(t *testing.T) {
	any5 := corev1.Toleration{Key: "a", Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute, TolerationSeconds: new(int64(5))}
	any9 := any5
	any9.TolerationSeconds = new(int64(9))
	all := corev1.Toleration{Operator: corev1.TolerationOpExists}
	value := corev1.Toleration{Key: "a", Operator: corev1.TolerationOpEqual, Value: "v", Effect: corev1.TaintEffectNoSchedule}
	key := corev1.Toleration{Key: "a", Operator: corev1.TolerationOpExists}
	other := corev1.Toleration{Key: "b", Operator: corev1.TolerationOpExists}
	type list = []corev1.Toleration
	for name, tc := range map[string]struct{ first, second, want list }{
		"nothing":         {nil, nil, nil},
		"twice":           {list{value}, list{value}, list{value}},
		"wider later":     {list{value}, list{key}, list{key}},
		"wider first":     {list{key}, list{value}, list{key}},
		"different":       {list{value}, list{other}, list{value, other}},
		"all":             {list{value, other}, list{all}, list{all}},
		"longer contains": {list{any5}, list{any9}, list{any9}},
	} {
		if got := mergeTolerations(tc.first, tc.second); !apiequality.Semantic.DeepEqual(got, tc.want) {
			t.Errorf("%s: %v", name, got)
		}
	}
}
