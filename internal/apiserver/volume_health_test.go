package apiserver

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

// withVolumeHealth is a change of a test's configuration.
func withVolumeHealth(c *Config) { c.FeatureGates = map[string]bool{"CSIVolumeHealth": true} }

// ailing are the objects of which CSI drivers say something.
type ailing struct {
	t     *testing.T
	c     kubernetes.Interface
	pod   *corev1.Pod
	claim *corev1.PersistentVolumeClaim
}

func newAiling(t *testing.T, s *Server) *ailing {
	t.Helper()
	makeAccount(t, s)
	c := admin(t, s)
	a := &ailing{t: t, c: c}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p"}, Spec: corev1.PodSpec{
		NodeName: "n1", Containers: []corev1.Container{{Name: "c", Image: "i"}},
		Volumes: []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}},
	}}
	claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: "c"}, Spec: corev1.PersistentVolumeClaimSpec{
		AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
		Resources:   corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}},
	}}
	var err error
	if a.pod, err = c.CoreV1().Pods("default").Create(t.Context(), pod, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if a.claim, err = c.CoreV1().PersistentVolumeClaims("default").Create(t.Context(), claim, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	return a
}

func degraded(reason string) corev1.VolumeHealthCondition {
	return corev1.VolumeHealthCondition{Status: corev1.VolumeHealthDegraded, Reason: reason, Message: "m"}
}

// tell writes what is wrong, and reports which of the two statuses have it.
func (a *ailing) tell(reason string) (pod, claim bool) {
	a.t.Helper()
	p, c := a.pod.DeepCopy(), a.claim.DeepCopy()
	p.ResourceVersion = ""
	p.Status.VolumeHealth = []corev1.PodVolumeHealth{{Name: "v", HealthConditions: []corev1.VolumeHealthCondition{degraded(reason)}}}
	c.Status.HealthStatus = &corev1.VolumeHealthStatus{HealthConditions: []corev1.VolumeHealthCondition{degraded(reason)}}
	p, err := a.c.CoreV1().Pods("default").UpdateStatus(a.t.Context(), p, metav1.UpdateOptions{})
	if err != nil {
		a.t.Fatal(err)
	}
	current, err := a.c.CoreV1().PersistentVolumeClaims("default").Get(a.t.Context(), "c", metav1.GetOptions{})
	if err != nil {
		a.t.Fatal(err)
	}
	c.ResourceVersion = current.ResourceVersion
	c, err = a.c.CoreV1().PersistentVolumeClaims("default").UpdateStatus(a.t.Context(), c, metav1.UpdateOptions{})
	if err != nil {
		a.t.Fatal(err)
	}
	has := func(list []corev1.VolumeHealthCondition) bool { return len(list) == 1 && list[0].Reason == reason }
	return len(p.Status.VolumeHealth) == 1 && has(p.Status.VolumeHealth[0].HealthConditions),
		c.Status.HealthStatus != nil && has(c.Status.HealthStatus.HealthConditions)
}

// Without the gate nothing new is kept, and what was written while it was open stays.
func TestTheHealthOfVolumesNeedsItsGate(t *testing.T) {
	dir := t.TempDir()
	s, stop := run(t, dir)
	a := newAiling(t, s)
	if pod, claim := a.tell("R"); pod || claim {
		t.Errorf("without the gate: pod %t, claim %t", pod, claim)
	}
	node := csiNodeOf(t, a.c)
	node.Status.StorageHealth = []storagev1.StorageHealth{{Name: "d.example.com"}}
	after, err := a.c.StorageV1().CSINodes().UpdateStatus(t.Context(), node, metav1.UpdateOptions{})
	if err != nil || len(after.Status.StorageHealth) > 0 {
		t.Errorf("the status of a CSINode without the gate: %v, %+v", err, after.Status)
	}
	after.Status = node.Status
	if got, err := a.c.StorageV1().CSINodes().Update(t.Context(), after, metav1.UpdateOptions{}); err != nil || len(got.Status.StorageHealth) > 0 {
		t.Errorf("%v, %+v", err, got.Status)
	}
	stop()

	s, stop = run(t, dir, withVolumeHealth)
	a.c = admin(t, s)
	if pod, claim := a.tell("R"); !pod || !claim {
		t.Errorf("with the gate: pod %t, claim %t", pod, claim)
	}
	stop()

	s, stop = run(t, dir)
	defer stop()
	a.c = admin(t, s)
	if pod, claim := a.tell("Other"); !pod || !claim {
		t.Errorf("the gate is closed again: pod %t, claim %t", pod, claim)
	}
}

func csiNodeOf(t *testing.T, c kubernetes.Interface) *storagev1.CSINode {
	t.Helper()
	node, err := c.StorageV1().CSINodes().Create(t.Context(), &storagev1.CSINode{
		ObjectMeta: metav1.ObjectMeta{Name: "n1"}, Spec: storagev1.CSINodeSpec{Drivers: []storagev1.CSINodeDriver{{Name: "d.example.com", NodeID: "x"}}},
		Status: storagev1.CSINodeStatus{StorageHealth: []storagev1.StorageHealth{{Name: "d.example.com"}}},
	}, metav1.CreateOptions{})
	if err != nil || len(node.Status.StorageHealth) > 0 {
		t.Fatalf("%v, %+v", err, node)
	}
	return node
}

func TestTheHealthOfVolumes(t *testing.T) {
	s, stop := run(t, t.TempDir(), withVolumeHealth)
	defer stop()
	a := newAiling(t, s)
	many := make([]corev1.VolumeHealthCondition, 17)
	for i := range many {
		many[i] = degraded(strings.Repeat("r", i+1))
	}
	for name, tc := range map[string]struct {
		list []corev1.VolumeHealthCondition
		want string
	}{
		"no status":      {[]corev1.VolumeHealthCondition{{Reason: "R"}}, "status: "},
		"unknown status": {[]corev1.VolumeHealthCondition{{Status: "Bad", Reason: "R"}}, `status: Unsupported value: "Bad"`},
		"no reason":      {[]corev1.VolumeHealthCondition{degraded("")}, "reason: Required value"},
		"long reason":    {[]corev1.VolumeHealthCondition{degraded(strings.Repeat("r", 257))}, "reason: Too long: may not be more than 256 bytes"},
		"twice":          {[]corev1.VolumeHealthCondition{degraded("R"), degraded("R")}, "[1]: Duplicate value"},
		"many":           {many, "Too many: 17: must have at most 16 items"},
		"long message": {[]corev1.VolumeHealthCondition{{Status: corev1.VolumeHealthDataLoss, Reason: "R", Message: strings.Repeat("m", 1025)}},
			"message: Too long: may not be more than 1024 bytes"},
	} {
		p := a.pod.DeepCopy()
		p.ResourceVersion = ""
		p.Status.VolumeHealth = []corev1.PodVolumeHealth{{Name: "v", HealthConditions: tc.list}}
		_, err := a.c.CoreV1().Pods("default").UpdateStatus(t.Context(), p, metav1.UpdateOptions{})
		refused(t, err, "status.volumeHealth[0].healthConditions")
		refused(t, err, tc.want)
		c := a.claim.DeepCopy()
		c.Status.HealthStatus = &corev1.VolumeHealthStatus{HealthConditions: tc.list}
		_, err = a.c.CoreV1().PersistentVolumeClaims("default").UpdateStatus(t.Context(), c, metav1.UpdateOptions{})
		refused(t, err, "status.healthStatus.healthConditions")
		if err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	p := a.pod.DeepCopy()
	p.ResourceVersion = ""
	p.Status.VolumeHealth = []corev1.PodVolumeHealth{{Name: "v"}, {Name: "v"}, {}}
	_, err := a.c.CoreV1().Pods("default").UpdateStatus(t.Context(), p, metav1.UpdateOptions{})
	refused(t, err, `status.volumeHealth[1].name: Duplicate value: "v"`)
	refused(t, err, "status.volumeHealth[2].name: Required value")
}

// A node tells of the storage behind its own drivers, and of nothing else.
func TestTheStatusOfACSINode(t *testing.T) {
	s, stop := run(t, t.TempDir(), withVolumeHealth)
	defer stop()
	node := csiNodeOf(t, admin(t, s))
	of := func(name string) kubernetes.Interface {
		return clientFor(t, s.ClientConfig("system:node:"+name, "system:nodes"))
	}
	update := func(by kubernetes.Interface, h ...storagev1.StorageHealth) (*storagev1.CSINode, error) {
		n := node.DeepCopy()
		n.Labels, n.Spec.Drivers, n.Status.StorageHealth = map[string]string{"a": "b"}, nil, h
		return by.StorageV1().CSINodes().UpdateStatus(t.Context(), n, metav1.UpdateOptions{})
	}
	unreachable := storagev1.StorageHealthCondition{Status: storagev1.StorageUnreachable, Reason: "R"}
	if _, err := update(of("n2"), storagev1.StorageHealth{Name: "d.example.com"}); !apierrors.IsForbidden(err) {
		t.Errorf("by another node: %v", err)
	}
	bad := unreachable
	bad.Status, bad.Reason, bad.AccessMode, bad.VolumeMode = "Bad", "", new(corev1.PersistentVolumeAccessMode("No")), new(corev1.PersistentVolumeMode("No"))
	_, err := update(of("n1"), storagev1.StorageHealth{Name: "d.example.com", HealthConditions: []storagev1.StorageHealthCondition{bad}}, storagev1.StorageHealth{Name: "d.example.com"})
	for _, want := range []string{
		`status.storageHealth[0].healthConditions[0].status: Unsupported value: "Bad"`, "healthConditions[0].reason: Required value",
		`healthConditions[0].accessMode: Unsupported value: "No"`, `healthConditions[0].volumeMode: Unsupported value: "No"`,
		`status.storageHealth[1].name: Duplicate value: "d.example.com"`,
	} {
		refused(t, err, want)
	}
	got, err := update(of("n1"), storagev1.StorageHealth{Name: "d.example.com", HealthConditions: []storagev1.StorageHealthCondition{unreachable}})
	if err != nil || len(got.Status.StorageHealth) != 1 || len(got.Labels) > 0 || len(got.Spec.Drivers) != 1 {
		t.Fatalf("%v, %+v", err, got)
	}
	got.Status, got.Labels = storagev1.CSINodeStatus{}, map[string]string{"a": "b"}
	if got, err = of("n1").StorageV1().CSINodes().Update(t.Context(), got, metav1.UpdateOptions{}); err != nil || len(got.Status.StorageHealth) != 1 {
		t.Errorf("an update of the object: %v, %+v", err, got)
	}
}
