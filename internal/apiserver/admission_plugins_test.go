package apiserver

import (
	"errors"
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

func TestOnlyClaimsOfAClassThatExpandsGrow(t *testing.T) {
	s := start(t)
	ctx, c := t.Context(), admin(t, s)
	for name, expands := range map[string]bool{"fixed": false, "elastic": true} {
		class := &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: name}, Provisioner: "csi.example.com", AllowVolumeExpansion: &expands}
		if _, err := c.StorageV1().StorageClasses().Create(ctx, class, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	claims := c.CoreV1().PersistentVolumeClaims("default")
	const unfit = "only dynamically provisioned pvc can be resized and the storageclass that provisions the pvc must support resize"
	for _, tc := range []struct {
		class string
		phase corev1.PersistentVolumeClaimPhase
		want  string
	}{
		{"elastic", corev1.ClaimBound, ""},
		{"fixed", corev1.ClaimBound, unfit},
		{"absent", corev1.ClaimBound, unfit},
		{"", corev1.ClaimBound, unfit},
		// Validation comes first: the specification of a claim that is not bound cannot change at all.
		{"elastic", corev1.ClaimPending, "spec is immutable after creation"},
	} {
		claim, err := claims.Create(ctx, growingClaim(tc.class), metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		claim.Status.Phase = tc.phase
		if claim, err = claims.UpdateStatus(ctx, claim, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		claim.Spec.Resources.Requests[corev1.ResourceStorage] = resource.MustParse("2Gi")
		switch _, err = claims.Update(ctx, claim, metav1.UpdateOptions{}); {
		case tc.want != "":
			refused(t, err, tc.want)
		case err != nil:
			t.Errorf("%s: %v", tc.class, err)
		}
	}
}

func growingClaim(class string) *corev1.PersistentVolumeClaim {
	return &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "c-"},
		Spec: corev1.PersistentVolumeClaimSpec{
			AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}, StorageClassName: &class, VolumeName: "pv",
			Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}},
		},
	}
}

// annotate sets annotations of the namespace default, and waits until plugins know of it.
func annotate(t *testing.T, c kubernetes.Interface, annotations map[string]string, known func() error) {
	t.Helper()
	ns, err := c.CoreV1().Namespaces().Get(t.Context(), "default", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	ns.Annotations = annotations
	if _, err := c.CoreV1().Namespaces().Update(t.Context(), ns, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, known)
}

func TestNamespacesSayWhatPodsMaySelectAndTolerate(t *testing.T) {
	s := start(t, func(c *Config) {
		c.EnableAdmission = []string{"PodNodeSelector", "PodTolerationRestriction", "NamespaceExists"}
	})
	ctx, c := t.Context(), admin(t, s)
	pods := c.CoreV1().Pods("default")
	annotate(t, c, map[string]string{
		"scheduler.alpha.kubernetes.io/node-selector":        "disk=ssd",
		"scheduler.alpha.kubernetes.io/defaultTolerations":   `[{"key":"ours","operator":"Exists"}]`,
		"scheduler.alpha.kubernetes.io/tolerationsWhitelist": `[{"key":"ours","operator":"Exists"},{"operator":"Exists","effect":"NoExecute"}]`,
	}, func() error {
		p, err := pods.Create(ctx, generated(testPod("")), metav1.CreateOptions{})
		if err != nil {
			return err
		}
		if p.Spec.NodeSelector["disk"] != "ssd" || !tolerates(p, "ours") {
			return fmt.Errorf("selector %v, tolerations %v", p.Spec.NodeSelector, p.Spec.Tolerations)
		}
		return nil
	})
	p := generated(testPod(""))
	p.Spec.NodeSelector = map[string]string{"disk": "tape"}
	_, err := pods.Create(ctx, p, metav1.CreateOptions{})
	refused(t, err, "pod node label selector conflicts with its namespace node label selector")
	p = generated(testPod(""))
	p.Spec.Tolerations = []corev1.Toleration{{Key: "theirs", Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoSchedule}}
	_, err = pods.Create(ctx, p, metav1.CreateOptions{})
	refused(t, err, "pod tolerations (possibly merged with namespace default tolerations) conflict with its namespace whitelist")
	annotate(t, c, nil, func() error {
		p, err := pods.Create(ctx, generated(testPod("")), metav1.CreateOptions{})
		if err == nil && (len(p.Spec.NodeSelector) != 0 || tolerates(p, "ours")) {
			return errors.New("the annotations are still in force")
		}
		return err
	})
	annotate(t, c, map[string]string{"scheduler.alpha.kubernetes.io/defaultTolerations": "{"}, func() error {
		if _, err = pods.Create(ctx, generated(testPod("")), metav1.CreateOptions{}); err == nil {
			return errors.New("an annotation that is no list is not refused")
		}
		refused(t, err, "annotation scheduler.alpha.kubernetes.io/defaultTolerations of namespace default: ")
		return nil
	})
	err = c.CoreV1().Secrets("absent").Delete(ctx, "s", metav1.DeleteOptions{})
	if !apierrors.IsNotFound(err) {
		t.Errorf("deletion in a namespace that does not exist: %v", err)
	}
}

func tolerates(p *corev1.Pod, key string) bool {
	for _, t := range p.Spec.Tolerations {
		if t.Key == key {
			return true
		}
	}
	return false
}

func TestPluginsThatAreUnknownStopTheStart(t *testing.T) {
	cfg := DefaultConfig()
	cfg.DataDir, cfg.EnableAdmission = t.TempDir(), []string{"AlwaysDeny", "PodSecurty"}
	refused(t, errors.Join(cfg.Validate()...), `enable-admission-plugins plugin "PodSecurty" is unknown`)
}
