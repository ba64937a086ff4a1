package replicaset

import (
	"context"

	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/informers"
	clientset "k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
)

// object is what a kind's objects are.
type object interface {
	metav1.Object
	runtime.Object
}

// set is what this package knows of a ReplicaSet or a ReplicationController.
type set struct {
	object
	replicas int32
	minReady int32 // seconds
	selector labels.Selector
	template *v1.PodTemplateSpec
	status   appsv1.ReplicaSetStatus
}

// kind is one of the kinds that this package serves.
type kind struct {
	schema.GroupVersionKind
	// name is that of the controller, component that of the source of its events.
	name, component string
	// terminating is whether the kind's status has terminatingReplicas.
	terminating bool
	informer    func(informers.SharedInformerFactory) cache.SharedIndexInformer
	// view returns an object of the kind as a set. It fails if its selector is invalid.
	view func(object) (set, error)
	get  func(ctx context.Context, c clientset.Interface, namespace, name string) (object, error)
	// updateStatus writes a status to the object, which may be a cached one.
	updateStatus func(context.Context, clientset.Interface, object, appsv1.ReplicaSetStatus) (object, error)
}

var replicaSets = kind{
	GroupVersionKind: appsv1.SchemeGroupVersion.WithKind("ReplicaSet"),
	name:             "replicaset",
	component:        "replicaset-controller",
	terminating:      true,
	informer: func(f informers.SharedInformerFactory) cache.SharedIndexInformer {
		return f.Apps().V1().ReplicaSets().Informer()
	},
	view: func(o object) (set, error) {
		rs := o.(*appsv1.ReplicaSet)
		selector, err := metav1.LabelSelectorAsSelector(rs.Spec.Selector)
		return set{
			object: rs, replicas: orOne(rs.Spec.Replicas), minReady: rs.Spec.MinReadySeconds,
			selector: selector, template: &rs.Spec.Template, status: rs.Status,
		}, err
	},
	get: func(ctx context.Context, c clientset.Interface, namespace, name string) (object, error) {
		return c.AppsV1().ReplicaSets(namespace).Get(ctx, name, metav1.GetOptions{})
	},
	updateStatus: func(ctx context.Context, c clientset.Interface, o object, st appsv1.ReplicaSetStatus) (object, error) {
		rs := o.(*appsv1.ReplicaSet).DeepCopy()
		rs.Status = st
		return c.AppsV1().ReplicaSets(rs.Namespace).UpdateStatus(ctx, rs, metav1.UpdateOptions{})
	},
}

var replicationControllers = kind{
	GroupVersionKind: v1.SchemeGroupVersion.WithKind("ReplicationController"),
	name:             "replicationmanager",
	component:        "replication-controller",
	informer: func(f informers.SharedInformerFactory) cache.SharedIndexInformer {
		return f.Core().V1().ReplicationControllers().Informer()
	},
	view: func(o object) (set, error) {
		rc := o.(*v1.ReplicationController)
		template := rc.Spec.Template
		if template == nil {
			template = &v1.PodTemplateSpec{}
		}
		return set{
			object: rc, replicas: orOne(rc.Spec.Replicas), minReady: rc.Spec.MinReadySeconds,
			selector: exactly(rc.Spec.Selector), template: template, status: statusOfRC(rc.Status),
		}, nil
	},
	get: func(ctx context.Context, c clientset.Interface, namespace, name string) (object, error) {
		return c.CoreV1().ReplicationControllers(namespace).Get(ctx, name, metav1.GetOptions{})
	},
	updateStatus: func(ctx context.Context, c clientset.Interface, o object, st appsv1.ReplicaSetStatus) (object, error) {
		rc := o.(*v1.ReplicationController).DeepCopy()
		rc.Status = rcStatusOf(st)
		return c.CoreV1().ReplicationControllers(rc.Namespace).UpdateStatus(ctx, rc, metav1.UpdateOptions{})
	},
}

// orOne is the API's default number of replicas.
func orOne(n *int32) int32 {
	if n == nil {
		return 1
	}
	return *n
}

// exactly is the selector for a map. Unlike in other places, an empty one selects nothing.
func exactly(m map[string]string) labels.Selector {
	if len(m) == 0 {
		return labels.Nothing()
	}
	return labels.SelectorFromSet(m)
}

// statusOfRC says in a ReplicaSet's terms what a ReplicationController's status says.
func statusOfRC(st v1.ReplicationControllerStatus) appsv1.ReplicaSetStatus {
	out := appsv1.ReplicaSetStatus{
		Replicas: st.Replicas, FullyLabeledReplicas: st.FullyLabeledReplicas, ReadyReplicas: st.ReadyReplicas,
		AvailableReplicas: st.AvailableReplicas, ObservedGeneration: st.ObservedGeneration,
	}
	for _, c := range st.Conditions {
		out.Conditions = append(out.Conditions, appsv1.ReplicaSetCondition{
			Type: appsv1.ReplicaSetConditionType(c.Type), Status: c.Status, LastTransitionTime: c.LastTransitionTime, Reason: c.Reason, Message: c.Message,
		})
	}
	return out
}

// rcStatusOf is the inverse of statusOfRC.
func rcStatusOf(st appsv1.ReplicaSetStatus) v1.ReplicationControllerStatus {
	out := v1.ReplicationControllerStatus{
		Replicas: st.Replicas, FullyLabeledReplicas: st.FullyLabeledReplicas, ReadyReplicas: st.ReadyReplicas,
		AvailableReplicas: st.AvailableReplicas, ObservedGeneration: st.ObservedGeneration,
	}
	for _, c := range st.Conditions {
		out.Conditions = append(out.Conditions, v1.ReplicationControllerCondition{
			Type: v1.ReplicationControllerConditionType(c.Type), Status: c.Status, LastTransitionTime: c.LastTransitionTime, Reason: c.Reason, Message: c.Message,
		})
	}
	return out
}
