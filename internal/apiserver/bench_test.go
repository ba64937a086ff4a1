package apiserver

import (
	"fmt"
	"testing"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// BenchmarkPod writes what a pod's life writes, as a component of this process: the pod, its statuses, an event
// and its deletion. What counts is the CPU of the server, its watch cache and its etcd.
func BenchmarkPod(b *testing.B) {
	s := start(b)
	client := admin(b, s)
	api, events := client.CoreV1().Pods("default"), client.CoreV1().Events("default")
	var usage unix.Rusage
	cpu := func() int64 {
		if err := unix.Getrusage(unix.RUSAGE_SELF, &usage); err != nil {
			b.Fatal(err)
		}
		return usage.Utime.Nano() + usage.Stime.Nano()
	}
	before := cpu()
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		name := fmt.Sprintf("p%d", i)
		pod, err := api.Create(b.Context(), benchPod(name), metav1.CreateOptions{})
		for _, phase := range []corev1.PodPhase{corev1.PodPending, corev1.PodRunning, corev1.PodSucceeded} {
			if err != nil {
				b.Fatal(err)
			}
			pod.Status.Phase = phase
			pod.Status.Conditions = append(pod.Status.Conditions, corev1.PodCondition{Type: corev1.PodConditionType(phase), Status: corev1.ConditionTrue})
			pod, err = api.UpdateStatus(b.Context(), pod, metav1.UpdateOptions{})
		}
		if err != nil {
			b.Fatal(err)
		}
		e := &corev1.Event{
			ObjectMeta:     metav1.ObjectMeta{Name: name, Namespace: "default"},
			InvolvedObject: corev1.ObjectReference{Kind: "Pod", Namespace: "default", Name: name, UID: pod.UID},
			Reason:         "Started", Message: "Started container c", Type: corev1.EventTypeNormal,
		}
		if _, err := events.Create(b.Context(), e, metav1.CreateOptions{}); err != nil {
			b.Fatal(err)
		}
		if err := api.Delete(b.Context(), name, *metav1.NewDeleteOptions(0)); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(cpu()-before)/1e3/float64(b.N), "cpu-µs/op")
}

func benchPod(name string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"app": "bench", "job-name": "j"}},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "busybox:1.36", Command: []string{"true"}}}},
	}
}
