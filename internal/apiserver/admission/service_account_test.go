package admission

import (
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestMountableSecrets tests pods of an account that limits them.
func TestMountableSecrets(t *testing.T) {
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "sa"},
		Secrets: []corev1.ObjectReference{{Name: "listed"}}, ImagePullSecrets: []corev1.LocalObjectReference{{Name: "pull"}}}
	env := func(name string) corev1.Container {
		ref := &corev1.SecretKeySelector{LocalObjectReference: corev1.LocalObjectReference{Name: name}}
		return corev1.Container{Name: "c", Env: []corev1.EnvVar{{Name: "E", ValueFrom: &corev1.EnvVarSource{SecretKeyRef: ref}}}}
	}
	envFrom := func(name string) corev1.Container {
		ref := &corev1.SecretEnvSource{LocalObjectReference: corev1.LocalObjectReference{Name: name}}
		return corev1.Container{Name: "c", EnvFrom: []corev1.EnvFromSource{{SecretRef: ref}}}
	}
	volume := func(s corev1.VolumeSource) func(*corev1.Pod) {
		return func(p *corev1.Pod) { p.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: s}} }
	}
	in := func(c corev1.Container) func(*corev1.Pod) {
		return func(p *corev1.Pod) { p.Spec.Containers = []corev1.Container{c} }
	}
	before := func(c corev1.Container) func(*corev1.Pod) {
		return func(p *corev1.Pod) { p.Spec.InitContainers = []corev1.Container{c} }
	}
	pull := func(name string) func(*corev1.Pod) {
		return func(p *corev1.Pod) { p.Spec.ImagePullSecrets = []corev1.LocalObjectReference{{Name: name}} }
	}
	const not = ` secret.secretName="other" is not allowed because service account sa does not reference that secret`
	for name, tc := range map[string]struct {
		pod  func(*corev1.Pod)
		want string
	}{
		"nothing":         {func(*corev1.Pod) {}, ""},
		"listed volume":   {volume(corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "listed"}}), ""},
		"volume":          {volume(corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "other"}}), "volume with" + not},
		"projected":       {volume(corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{Sources: []corev1.VolumeProjection{{Secret: &corev1.SecretProjection{LocalObjectReference: corev1.LocalObjectReference{Name: "other"}}}}}}), "volume with" + not},
		"listed env":      {in(env("listed")), ""},
		"env":             {in(env("other")), "container c with envVar E referencing" + not},
		"envFrom":         {in(envFrom("other")), "container c with envFrom referencing" + not},
		"init env":        {before(env("other")), "init container c with envVar E referencing" + not},
		"init envFrom":    {before(envFrom("other")), "init container c with envFrom referencing" + not},
		"pull secret":     {pull("pull"), ""},
		"other pull":      {pull("other"), `imagePullSecrets[0].name="other" is not allowed because service account sa does not reference that imagePullSecret`},
		"mountable, pull": {pull("listed"), `imagePullSecrets[0].name="listed" is not allowed because service account sa does not reference that imagePullSecret`},
	} {
		pod := podOn("", tc.pod)
		got := ""
		if err := onlyMountable(account, secretRefs(pod), pod.Spec.ImagePullSecrets); err != nil {
			got = err.Error()
		}
		if got != tc.want {
			t.Errorf("%s: %q, want %q", name, got, tc.want)
		}
	}
}

func TestTokenIsMountedWhereNothingIs(t *testing.T) {
	mount := corev1.VolumeMount{Name: "own", MountPath: tokenPath}
	pod := podOn("", func(p *corev1.Pod) {
		p.Spec.InitContainers = []corev1.Container{{Name: "i"}}
		p.Spec.Containers = []corev1.Container{{Name: "a"}, {Name: "b", VolumeMounts: []corev1.VolumeMount{mount}}}
	})
	mountToken(pod)
	if len(pod.Spec.Volumes) != 1 || !strings.HasPrefix(pod.Spec.Volumes[0].Name, "kube-api-access-") {
		t.Fatalf("volumes %+v", pod.Spec.Volumes)
	}
	for i, want := range []string{pod.Spec.Volumes[0].Name, "own", pod.Spec.Volumes[0].Name} {
		c := slices.Concat(pod.Spec.Containers, pod.Spec.InitContainers)[i]
		if len(c.VolumeMounts) != 1 || c.VolumeMounts[0].Name != want || c.VolumeMounts[0].MountPath != tokenPath {
			t.Errorf("%s mounts %+v, want %s", c.Name, c.VolumeMounts, want)
		}
	}
	own := podOn("", func(p *corev1.Pod) {
		p.Spec.Containers = []corev1.Container{{VolumeMounts: []corev1.VolumeMount{mount}}}
	})
	if mountToken(own); len(own.Spec.Volumes) != 0 {
		t.Errorf("volumes that nobody mounts: %+v", own.Spec.Volumes)
	}
}

func TestWhoMountsATokenByItself(t *testing.T) {
	for _, tc := range []struct {
		account, pod *bool
		want         bool
	}{{nil, nil, true}, {new(false), nil, false}, {new(true), nil, true}, {nil, new(false), false}, {new(false), new(true), true}, {new(true), new(false), false}} {
		pod := podOn("", func(p *corev1.Pod) { p.Spec.AutomountServiceAccountToken = tc.pod })
		if got := automount(&corev1.ServiceAccount{AutomountServiceAccountToken: tc.account}, pod); got != tc.want {
			t.Errorf("%+v: %t", tc, got)
		}
	}
}
