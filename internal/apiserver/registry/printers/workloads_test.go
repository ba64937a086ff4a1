package printers

import (
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestWorkloadColumns(t *testing.T) {
	meta := metav1.ObjectMeta{Name: "w", CreationTimestamp: metav1.NewTime(now.Add(-60e9))}
	template := corev1.PodTemplateSpec{Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "a", Image: "x:1"}, {Name: "b", Image: "y"}}}}
	selector := &metav1.LabelSelector{MatchLabels: map[string]string{"app": "w"}}
	deployment := &appsv1.Deployment{
		ObjectMeta: meta, Spec: appsv1.DeploymentSpec{Replicas: new(int32(3)), Selector: selector, Template: template},
		Status: appsv1.DeploymentStatus{ReadyReplicas: 2, UpdatedReplicas: 1, AvailableReplicas: 2},
	}
	equal(t, Deployments.Cells(deployment, now), []any{"w", "2/3", int64(1), int64(2), "60s", "a,b", "x:1,y", "app=w"})
	set := &appsv1.ReplicaSet{
		ObjectMeta: meta, Spec: appsv1.ReplicaSetSpec{Replicas: new(int32(3)), Selector: selector, Template: template},
		Status: appsv1.ReplicaSetStatus{Replicas: 2, ReadyReplicas: 1},
	}
	equal(t, ReplicaSets.Cells(set, now), []any{"w", int64(3), int64(2), int64(1), "60s", "a,b", "x:1,y", "app=w"})
	daemons := &appsv1.DaemonSet{
		ObjectMeta: meta, Spec: appsv1.DaemonSetSpec{Selector: selector, Template: *template.DeepCopy()},
		Status: appsv1.DaemonSetStatus{DesiredNumberScheduled: 5, CurrentNumberScheduled: 4, NumberReady: 3, UpdatedNumberScheduled: 2, NumberAvailable: 1},
	}
	daemons.Spec.Template.Spec.NodeSelector = map[string]string{"disk": "ssd"}
	equal(t, DaemonSets.Cells(daemons, now), []any{"w", int64(5), int64(4), int64(3), int64(2), int64(1), "disk=ssd", "60s", "a,b", "x:1,y", "app=w"})
	stateful := &appsv1.StatefulSet{
		ObjectMeta: meta, Spec: appsv1.StatefulSetSpec{Replicas: new(int32(3)), Template: template},
		Status: appsv1.StatefulSetStatus{ReadyReplicas: 2},
	}
	equal(t, StatefulSets.Cells(stateful, now), []any{"w", "2/3", "60s", "a,b", "x:1,y"})
	revision := &appsv1.ControllerRevision{ObjectMeta: meta, Revision: 7}
	equal(t, ControllerRevisions.Cells(revision, now), []any{"w", "<none>", int64(7), "60s"})
	revision.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "DaemonSet", Name: "d", Controller: new(true)}}
	equal(t, ControllerRevisions.Cells(revision, now), []any{"w", "daemonset.apps/d", int64(7), "60s"})
	scale := &autoscalingv1.Scale{ObjectMeta: meta, Spec: autoscalingv1.ScaleSpec{Replicas: 3}, Status: autoscalingv1.ScaleStatus{Replicas: 2}}
	equal(t, Scales.Cells(scale, now), []any{"w", int64(3), int64(2), "60s"})
}

func TestEveryWorkloadHasACellForEachColumn(t *testing.T) {
	check := func(name string, columns, cells int) {
		if columns != cells {
			t.Errorf("%s: %d columns, %d cells", name, columns, cells)
		}
	}
	checkTable(check, "replicasets", ReplicaSets, &appsv1.ReplicaSet{})
	checkTable(check, "deployments", Deployments, &appsv1.Deployment{})
	checkTable(check, "daemonsets", DaemonSets, &appsv1.DaemonSet{})
	checkTable(check, "statefulsets", StatefulSets, &appsv1.StatefulSet{})
	checkTable(check, "controllerrevisions", ControllerRevisions, &appsv1.ControllerRevision{})
	checkTable(check, "scale", Scales, &autoscalingv1.Scale{})
}
