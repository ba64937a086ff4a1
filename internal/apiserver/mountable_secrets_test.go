package apiserver

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestEphemeralContainersGetOnlyMountableSecrets: in a namespace whose accounts list the secrets
// that their pods may mount, a user who could debug a pod used to be able to read every secret
// through it (CVE-2023-2728).
func TestEphemeralContainersGetOnlyMountableSecrets(t *testing.T) {
	s := start(t)
	ctx, c := t.Context(), admin(t, s)
	account := &corev1.ServiceAccount{
		ObjectMeta: metav1.ObjectMeta{Name: "strict", Annotations: map[string]string{"kubernetes.io/enforce-mountable-secrets": "true"}},
		Secrets:    []corev1.ObjectReference{{Name: "listed"}},
	}
	if _, err := c.CoreV1().ServiceAccounts("default").Create(ctx, account, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	pod := testPod("p")
	pod.Spec.ServiceAccountName = "strict"
	pod = mustPod(t, c, pod)
	env := func(secret string) corev1.EphemeralContainerCommon {
		ref := &corev1.SecretKeySelector{LocalObjectReference: corev1.LocalObjectReference{Name: secret}, Key: "k"}
		return corev1.EphemeralContainerCommon{Env: []corev1.EnvVar{{Name: "E", ValueFrom: &corev1.EnvVarSource{SecretKeyRef: ref}}}}
	}
	envFrom := func(secret string) corev1.EphemeralContainerCommon {
		ref := &corev1.SecretEnvSource{LocalObjectReference: corev1.LocalObjectReference{Name: secret}}
		return corev1.EphemeralContainerCommon{EnvFrom: []corev1.EnvFromSource{{SecretRef: ref}}}
	}
	for _, tc := range []struct {
		name string
		with corev1.EphemeralContainerCommon
		want string
	}{
		{"debug-a", env("other"), `ephemeral container debug-a with envVar E referencing secret.secretName="other" is not allowed because service account strict does not reference that secret`},
		{"debug-b", envFrom("other"), `ephemeral container debug-b with envFrom referencing secret.secretName="other" is not allowed because service account strict does not reference that secret`},
		{"debug-c", env("listed"), ""},
		{"debug-d", envFrom("listed"), ""},
	} {
		p := pod.DeepCopy()
		tc.with.Name, tc.with.Image, tc.with.ImagePullPolicy = tc.name, "busybox", corev1.PullIfNotPresent
		tc.with.TerminationMessagePolicy = corev1.TerminationMessageReadFile
		p.Spec.EphemeralContainers = append(p.Spec.EphemeralContainers, corev1.EphemeralContainer{EphemeralContainerCommon: tc.with})
		p, err := c.CoreV1().Pods("default").UpdateEphemeralContainers(ctx, "p", p, metav1.UpdateOptions{})
		switch {
		case tc.want != "":
			refused(t, err, tc.want)
		case err != nil:
			t.Errorf("%s: %v", tc.name, err)
		default:
			pod = p
		}
	}
}
