package printers

import (
	"fmt"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"wherry.dev/internal/apiserver/registry"
)

func integer(name, description string) metav1.TableColumnDefinition {
	return registry.Column(name, "integer", "", description, false)
}

const (
	aboutNames  = "Names of each container in the template."
	aboutImages = "Images referenced by each container in the template."
	aboutReady  = "Number of the pod with ready state"
)

// templateColumns are the columns of namesAndImages.
var templateColumns = []metav1.TableColumnDefinition{wide("Containers", aboutNames), wide("Images", aboutImages)}

// withTemplate returns columns, those of the containers, and one of the selector.
func withTemplate(selector string, columns ...metav1.TableColumnDefinition) []metav1.TableColumnDefinition {
	return append(append(columns, templateColumns...), wide("Selector", selector))
}

func namesAndImages(containers []corev1.Container) (names, images string) {
	var ns, is []string
	for i := range containers {
		ns, is = append(ns, containers[i].Name), append(is, containers[i].Image)
	}
	return strings.Join(ns, ","), strings.Join(is, ",")
}

// ReplicaSets is the table of replica sets.
var ReplicaSets = registry.Table[*appsv1.ReplicaSet]{
	Columns: withTemplate(appsv1.ReplicaSetSpec{}.SwaggerDoc()["selector"],
		nameColumn,
		integer("Desired", appsv1.ReplicaSetSpec{}.SwaggerDoc()["replicas"]),
		integer("Current", appsv1.ReplicaSetStatus{}.SwaggerDoc()["replicas"]),
		integer("Ready", appsv1.ReplicaSetStatus{}.SwaggerDoc()["readyReplicas"]),
		ageColumn),
	Cells: func(r *appsv1.ReplicaSet, now time.Time) []any {
		names, images := namesAndImages(r.Spec.Template.Spec.Containers)
		return []any{
			r.Name, int64(or(r.Spec.Replicas, 0)), int64(r.Status.Replicas), int64(r.Status.ReadyReplicas), age(r, now),
			names, images, metav1.FormatLabelSelector(r.Spec.Selector),
		}
	},
}

// Deployments is the table of deployments.
var Deployments = registry.Table[*appsv1.Deployment]{
	Columns: withTemplate(appsv1.DeploymentSpec{}.SwaggerDoc()["selector"],
		nameColumn,
		column("Ready", aboutReady),
		column("Up-to-date", appsv1.DeploymentStatus{}.SwaggerDoc()["updatedReplicas"]),
		column("Available", appsv1.DeploymentStatus{}.SwaggerDoc()["availableReplicas"]),
		ageColumn),
	Cells: func(d *appsv1.Deployment, now time.Time) []any {
		names, images := namesAndImages(d.Spec.Template.Spec.Containers)
		selector := "<invalid>"
		if s, err := metav1.LabelSelectorAsSelector(d.Spec.Selector); err == nil {
			selector = s.String()
		}
		return []any{
			d.Name, fmt.Sprintf("%d/%d", d.Status.ReadyReplicas, or(d.Spec.Replicas, 0)),
			int64(d.Status.UpdatedReplicas), int64(d.Status.AvailableReplicas), age(d, now), names, images, selector,
		}
	},
}

// Scales is the table of the /scale endpoints.
var Scales = registry.Table[*autoscalingv1.Scale]{
	Columns: []metav1.TableColumnDefinition{
		column("Name", metav1.ObjectMeta{}.SwaggerDoc()["name"]),
		integer("Desired", autoscalingv1.ScaleSpec{}.SwaggerDoc()["replicas"]),
		integer("Available", autoscalingv1.ScaleStatus{}.SwaggerDoc()["replicas"]),
		ageColumn,
	},
	Cells: func(s *autoscalingv1.Scale, now time.Time) []any {
		return []any{s.Name, int64(s.Spec.Replicas), int64(s.Status.Replicas), age(s, now)}
	},
}

// DaemonSets is the table of daemon sets.
var DaemonSets = registry.Table[*appsv1.DaemonSet]{
	Columns: withTemplate(appsv1.DaemonSetSpec{}.SwaggerDoc()["selector"],
		nameColumn,
		integer("Desired", appsv1.DaemonSetStatus{}.SwaggerDoc()["desiredNumberScheduled"]),
		integer("Current", appsv1.DaemonSetStatus{}.SwaggerDoc()["currentNumberScheduled"]),
		integer("Ready", appsv1.DaemonSetStatus{}.SwaggerDoc()["numberReady"]),
		integer("Up-to-date", appsv1.DaemonSetStatus{}.SwaggerDoc()["updatedNumberScheduled"]),
		integer("Available", appsv1.DaemonSetStatus{}.SwaggerDoc()["numberAvailable"]),
		column("Node Selector", corev1.PodSpec{}.SwaggerDoc()["nodeSelector"]),
		ageColumn),
	Cells: func(d *appsv1.DaemonSet, now time.Time) []any {
		names, images := namesAndImages(d.Spec.Template.Spec.Containers)
		return []any{
			d.Name, int64(d.Status.DesiredNumberScheduled), int64(d.Status.CurrentNumberScheduled), int64(d.Status.NumberReady),
			int64(d.Status.UpdatedNumberScheduled), int64(d.Status.NumberAvailable), formatLabels(d.Spec.Template.Spec.NodeSelector),
			age(d, now), names, images, metav1.FormatLabelSelector(d.Spec.Selector),
		}
	},
}

// StatefulSets is the table of stateful sets.
var StatefulSets = registry.Table[*appsv1.StatefulSet]{
	Columns: append([]metav1.TableColumnDefinition{nameColumn, column("Ready", aboutReady), ageColumn}, templateColumns...),
	Cells: func(s *appsv1.StatefulSet, now time.Time) []any {
		names, images := namesAndImages(s.Spec.Template.Spec.Containers)
		return []any{s.Name, fmt.Sprintf("%d/%d", s.Status.ReadyReplicas, or(s.Spec.Replicas, 0)), age(s, now), names, images}
	},
}

// ControllerRevisions is the table of the revisions of daemon sets and stateful sets.
var ControllerRevisions = registry.Table[*appsv1.ControllerRevision]{
	Columns: []metav1.TableColumnDefinition{
		nameColumn,
		column("Controller", "Controller of the object"),
		column("Revision", appsv1.ControllerRevision{}.SwaggerDoc()["revision"]),
		ageColumn,
	},
	Cells: func(r *appsv1.ControllerRevision, now time.Time) []any {
		controller := none
		if ref := metav1.GetControllerOf(r); ref != nil {
			kind := schema.FromAPIVersionAndKind(ref.APIVersion, ref.Kind).GroupKind()
			controller = strings.ToLower(kind.String()) + "/" + ref.Name
		}
		return []any{r.Name, controller, r.Revision, age(r, now)}
	},
}

// ReplicationControllers is the table of replication controllers.
var ReplicationControllers = registry.Table[*corev1.ReplicationController]{
	Columns: withTemplate(corev1.ReplicationControllerSpec{}.SwaggerDoc()["selector"],
		nameColumn,
		integer("Desired", corev1.ReplicationControllerSpec{}.SwaggerDoc()["replicas"]),
		integer("Current", corev1.ReplicationControllerStatus{}.SwaggerDoc()["replicas"]),
		integer("Ready", corev1.ReplicationControllerStatus{}.SwaggerDoc()["readyReplicas"]),
		ageColumn),
	Cells: func(r *corev1.ReplicationController, now time.Time) []any {
		names, images := namesAndImages(or(r.Spec.Template, corev1.PodTemplateSpec{}).Spec.Containers)
		return []any{
			r.Name, int64(or(r.Spec.Replicas, 0)), int64(r.Status.Replicas), int64(r.Status.ReadyReplicas), age(r, now),
			names, images, formatLabels(r.Spec.Selector),
		}
	},
}

// PodTemplates is the table of pod templates.
var PodTemplates = registry.Table[*corev1.PodTemplate]{
	Columns: []metav1.TableColumnDefinition{
		nameColumn, column("Containers", aboutNames), column("Images", aboutImages), column("Pod Labels", "The labels for the pod template."),
	},
	Cells: func(t *corev1.PodTemplate, _ time.Time) []any {
		names, images := namesAndImages(t.Template.Spec.Containers)
		return []any{t.Name, names, images, formatLabels(t.Template.Labels)}
	},
}
