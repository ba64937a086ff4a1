package main

import (
	"context"
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	batchv1 "k8s.io/api/batch/v1"
	v1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/intstr"
)

func resourceOf(group, name string) schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: group, Version: "v1", Resource: name}
}

// all are the themes by name.
var all map[string]theme

func init() { //nolint:gochecknoinits // themes refer to scenes, which refer to themes
	all = map[string]theme{
		"deployment":  {resourceOf("apps", "deployments"), (*scene).deployment, (*scene).changeDeployment},
		"replicaset":  {resourceOf("apps", "replicasets"), (*scene).replicaSet, (*scene).changeReplicas},
		"rc":          {resourceOf("", "replicationcontrollers"), (*scene).controller, (*scene).changeReplicas},
		"statefulset": {resourceOf("apps", "statefulsets"), (*scene).statefulSet, (*scene).changeStatefulSet},
		"daemonset":   {resourceOf("apps", "daemonsets"), (*scene).daemonSet, (*scene).changeDaemonSet},
		"job":         {resourceOf("batch", "jobs"), (*scene).job, (*scene).changeJob},
		"service":     {resourceOf("", "services"), (*scene).service, (*scene).changeService},
		"budget":      {resourceOf("policy", "poddisruptionbudgets"), (*scene).budget, nil},
		"quota":       {resourceOf("", "resourcequotas"), (*scene).quota, nil},
		"claim":       {resourceOf("", "persistentvolumeclaims"), (*scene).claim, nil},
		"volume":      {resourceOf("", "persistentvolumes"), (*scene).volume, nil},
		"pod":         {resourceOf("", "pods"), (*scene).pod, nil},
		"autoscaler":  {schema.GroupVersionResource{Group: "autoscaling", Version: "v2", Resource: "horizontalpodautoscalers"}, (*scene).autoscaler, nil},
	}
}

func (s *scene) meta(name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Name: name, Namespace: s.namespace, Labels: map[string]string{"made": "here"}}
}

// part returns a number or a share.
func (s *scene) part() *intstr.IntOrString {
	return new(pick(s, intstr.FromInt32(0), intstr.FromInt32(1), intstr.FromInt32(2), intstr.FromString("25%"), intstr.FromString("50%"), intstr.FromString("100%")))
}

func (s *scene) deployment(name string) runtime.Object {
	d := &appsv1.Deployment{ObjectMeta: s.meta(name), Spec: appsv1.DeploymentSpec{
		Replicas: new(int32(s.IntN(5))), Selector: selector(name), Template: s.template(name), //nolint:gosec // few
	}}
	switch s.IntN(3) {
	case 0:
		d.Spec.Strategy.Type = appsv1.RecreateDeploymentStrategyType
	case 1:
		surge, down := s.part(), s.part()
		if *down == intstr.FromInt32(0) && (*surge == intstr.FromInt32(0) || surge.StrVal == "0%") {
			surge = new(intstr.FromInt32(1))
		}
		d.Spec.Strategy = appsv1.DeploymentStrategy{
			Type: appsv1.RollingUpdateDeploymentStrategyType, RollingUpdate: &appsv1.RollingUpdateDeployment{MaxSurge: surge, MaxUnavailable: down},
		}
	}
	if s.chance(3) {
		d.Spec.RevisionHistoryLimit = new(int32(s.IntN(2))) //nolint:gosec // few
	}
	if s.chance(3) {
		d.Spec.ProgressDeadlineSeconds = new(int32(2))
	}
	if s.chance(3) {
		d.Spec.MinReadySeconds = 1
	}
	d.Spec.Paused = s.chance(6)
	return d
}

func (s *scene) changeDeployment(t thing) (string, happening) {
	switch s.IntN(8) {
	case 0, 1, 2:
		return s.retemplate(t)
	case 3, 4:
		return s.scale(t)
	case 5:
		return s.patch(t, fmt.Sprintf(`{"spec":{"paused":%v}}`, s.chance(2)))
	case 6:
		return s.patch(t, fmt.Sprintf(`{"metadata":{"annotations":{"note":"%d"}},"spec":{"minReadySeconds":%d}}`, s.IntN(9), s.IntN(2)))
	}
	return s.strike(t)
}

func (s *scene) replicaSet(name string) runtime.Object {
	return &appsv1.ReplicaSet{ObjectMeta: s.meta(name), Spec: appsv1.ReplicaSetSpec{
		Replicas: new(int32(s.IntN(5))), Selector: selector(name), Template: s.template(name), MinReadySeconds: int32(s.IntN(2)), //nolint:gosec // few
	}}
}

func (s *scene) controller(name string) runtime.Object {
	return &v1.ReplicationController{ObjectMeta: s.meta(name), Spec: v1.ReplicationControllerSpec{
		Replicas: new(int32(s.IntN(5))), Selector: selector(name).MatchLabels, Template: new(s.template(name)), //nolint:gosec // few
	}}
}

func (s *scene) changeReplicas(t thing) (string, happening) {
	if s.chance(2) {
		return s.scale(t)
	}
	return s.strike(t)
}

func (s *scene) statefulSet(name string) runtime.Object {
	set := &appsv1.StatefulSet{ObjectMeta: s.meta(name), Spec: appsv1.StatefulSetSpec{
		Replicas: new(int32(s.IntN(4))), Selector: selector(name), Template: s.template(name), ServiceName: "service", //nolint:gosec // few
		PodManagementPolicy: pick(s, appsv1.OrderedReadyPodManagement, appsv1.ParallelPodManagement), MinReadySeconds: int32(s.IntN(2)),
	}}
	switch s.IntN(4) {
	case 0:
		set.Spec.UpdateStrategy.Type = appsv1.OnDeleteStatefulSetStrategyType
	case 1:
		set.Spec.UpdateStrategy = appsv1.StatefulSetUpdateStrategy{
			Type: appsv1.RollingUpdateStatefulSetStrategyType, RollingUpdate: &appsv1.RollingUpdateStatefulSetStrategy{Partition: new(int32(s.IntN(3)))}, //nolint:gosec // few
		}
	}
	if s.chance(3) {
		set.Spec.VolumeClaimTemplates = []v1.PersistentVolumeClaim{*s.newClaim("data")}
		kept := func() appsv1.PersistentVolumeClaimRetentionPolicyType {
			return pick(s, appsv1.RetainPersistentVolumeClaimRetentionPolicyType, appsv1.DeletePersistentVolumeClaimRetentionPolicyType)
		}
		set.Spec.PersistentVolumeClaimRetentionPolicy = &appsv1.StatefulSetPersistentVolumeClaimRetentionPolicy{WhenDeleted: kept(), WhenScaled: kept()}
	}
	if s.chance(4) {
		set.Spec.Ordinals = &appsv1.StatefulSetOrdinals{Start: 3}
	}
	if s.chance(3) {
		set.Spec.RevisionHistoryLimit = new(int32(s.IntN(2))) //nolint:gosec // few
	}
	return set
}

func (s *scene) changeStatefulSet(t thing) (string, happening) {
	switch s.IntN(6) {
	case 0, 1:
		return s.retemplate(t)
	case 2, 3:
		return s.scale(t)
	}
	return s.strike(t)
}

func (s *scene) daemonSet(name string) runtime.Object {
	set := &appsv1.DaemonSet{ObjectMeta: s.meta(name), Spec: appsv1.DaemonSetSpec{
		Selector: selector(name), Template: s.template(name), MinReadySeconds: int32(s.IntN(2)), //nolint:gosec // few
	}}
	set.Spec.Template.Labels["daemon"] = "yes"
	if s.chance(3) {
		set.Spec.Template.Spec.NodeSelector = map[string]string{v1.LabelTopologyZone: pick(s, "z-0", "z-1", "none")}
	}
	switch s.IntN(4) {
	case 0:
		set.Spec.UpdateStrategy.Type = appsv1.OnDeleteDaemonSetStrategyType
	case 1:
		set.Spec.MinReadySeconds = 0 // upstream takes minutes with both
		set.Spec.UpdateStrategy = appsv1.DaemonSetUpdateStrategy{
			Type: appsv1.RollingUpdateDaemonSetStrategyType, RollingUpdate: &appsv1.RollingUpdateDaemonSet{MaxSurge: new(intstr.FromInt32(1)), MaxUnavailable: new(intstr.FromInt32(0))},
		}
	case 2:
		set.Spec.UpdateStrategy = appsv1.DaemonSetUpdateStrategy{
			Type: appsv1.RollingUpdateDaemonSetStrategyType, RollingUpdate: &appsv1.RollingUpdateDaemonSet{MaxUnavailable: new(intstr.FromString("50%"))},
		}
	}
	return set
}

func (s *scene) changeDaemonSet(t thing) (string, happening) {
	switch s.IntN(5) {
	case 0, 1:
		return s.retemplate(t)
	case 2:
		return s.patch(t, fmt.Sprintf(`{"spec":{"template":{"spec":{"nodeSelector":{%q:%q}}}}}`, v1.LabelTopologyZone, pick(s, "z-0", "z-1", "none")))
	}
	return s.strike(t)
}

func (s *scene) job(name string) runtime.Object {
	j := &batchv1.Job{ObjectMeta: s.meta(name), Spec: batchv1.JobSpec{
		Parallelism: new(int32(s.IntN(4))), Template: s.template(name), BackoffLimit: new(int32(s.IntN(3))), //nolint:gosec // few
	}}
	j.Spec.Template.Spec.RestartPolicy = v1.RestartPolicyNever
	if !s.chance(4) {
		j.Spec.Completions = new(int32(1 + s.IntN(4))) //nolint:gosec // few
		if s.chance(2) {
			j.Spec.CompletionMode = new(batchv1.IndexedCompletion)
		}
	}
	indexed := j.Spec.CompletionMode != nil
	if indexed && s.chance(2) {
		j.Spec.BackoffLimitPerIndex = new(int32(s.IntN(2))) //nolint:gosec // few
		j.Spec.BackoffLimit = nil
		if s.chance(2) {
			j.Spec.MaxFailedIndexes = new(int32(s.IntN(2))) //nolint:gosec // few
		}
	}
	if indexed && s.chance(3) {
		j.Spec.SuccessPolicy = &batchv1.SuccessPolicy{Rules: []batchv1.SuccessPolicyRule{{SucceededCount: new(int32(1))}}}
	}
	if s.chance(3) {
		action := pick(s, batchv1.PodFailurePolicyActionFailJob, batchv1.PodFailurePolicyActionIgnore, batchv1.PodFailurePolicyActionCount)
		j.Spec.PodFailurePolicy = &batchv1.PodFailurePolicy{Rules: []batchv1.PodFailurePolicyRule{{
			Action: action, OnExitCodes: &batchv1.PodFailurePolicyOnExitCodesRequirement{Operator: batchv1.PodFailurePolicyOnExitCodesOpIn, Values: []int32{42}},
		}}}
	}
	if s.chance(6) {
		j.Spec.ActiveDeadlineSeconds = new(int64(2))
	}
	if s.chance(6) {
		j.Spec.TTLSecondsAfterFinished = new(int32(s.IntN(2))) //nolint:gosec // few
	}
	if s.chance(5) {
		j.Spec.Suspend = new(true)
	}
	if s.chance(4) {
		j.Spec.PodReplacementPolicy = new(batchv1.Failed)
	}
	return j
}

func (s *scene) changeJob(t thing) (string, happening) {
	switch s.IntN(8) {
	case 0:
		return s.patch(t, fmt.Sprintf(`{"spec":{"suspend":%v}}`, s.chance(2)))
	case 1:
		return s.patch(t, fmt.Sprintf(`{"spec":{"parallelism":%d}}`, s.IntN(4)))
	}
	how := pick(s, "succeed", "succeed", "succeed", "fail", "fail-42", "delete", "unlabel", "all succeed")
	return fmt.Sprintf("%s: pods of %s", how, t.name), func(ctx context.Context, side *side) error {
		pods, err := side.of(ctx, s.namespace, t.name)
		if err != nil || len(pods) == 0 {
			return err
		}
		if how != "all succeed" {
			return side.strike(ctx, &pods[0], how)
		}
		for i := range pods {
			if err := side.strike(ctx, &pods[i], "succeed"); err != nil {
				return err
			}
		}
		return nil
	}
}

func (s *scene) service(name string) runtime.Object {
	svc := &v1.Service{ObjectMeta: s.meta(name), Spec: v1.ServiceSpec{
		Selector: map[string]string{"app": pick(s, "a", "b")}, PublishNotReadyAddresses: s.chance(4),
		Ports: []v1.ServicePort{{Name: "web", Port: 80, TargetPort: pick(s, intstr.FromInt32(80), intstr.FromString("web"), intstr.FromString("none"))}},
	}}
	if s.chance(3) {
		svc.Spec.ClusterIP = v1.ClusterIPNone
	}
	if s.chance(6) {
		svc.Spec.Selector = nil
	}
	return svc
}

func (s *scene) changeService(t thing) (string, happening) {
	switch s.IntN(3) {
	case 0:
		return s.patch(t, fmt.Sprintf(`{"spec":{"selector":{"app":%q}}}`, pick(s, "a", "b", "none")))
	case 1:
		return s.patch(t, fmt.Sprintf(`{"metadata":{"labels":{"color":%q}}}`, pick(s, "red", "blue")))
	}
	return s.patch(t, fmt.Sprintf(`{"spec":{"publishNotReadyAddresses":%v}}`, s.chance(2)))
}

func (s *scene) budget(name string) runtime.Object {
	b := &policyv1.PodDisruptionBudget{ObjectMeta: s.meta(name), Spec: policyv1.PodDisruptionBudgetSpec{
		Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": pick(s, "a", "b")}},
	}}
	if s.chance(2) {
		b.Spec.MinAvailable = s.part()
	} else {
		b.Spec.MaxUnavailable = s.part()
	}
	return b
}

func (s *scene) quota(name string) runtime.Object {
	return &v1.ResourceQuota{ObjectMeta: s.meta(name), Spec: v1.ResourceQuotaSpec{Hard: v1.ResourceList{
		v1.ResourcePods: resource.MustParse("100"), v1.ResourceServices: resource.MustParse("20"), "count/jobs.batch": resource.MustParse("20"),
		v1.ResourcePersistentVolumeClaims: resource.MustParse("20"), "count/deployments.apps": resource.MustParse("20"),
	}}}
}

func (s *scene) newClaim(name string) *v1.PersistentVolumeClaim {
	return &v1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1.PersistentVolumeClaimSpec{
		AccessModes: []v1.PersistentVolumeAccessMode{pick(s, v1.ReadWriteOnce, v1.ReadWriteMany)}, StorageClassName: new(""),
		Resources: v1.VolumeResourceRequirements{Requests: v1.ResourceList{v1.ResourceStorage: resource.MustParse(pick(s, "1Gi", "5Gi"))}},
	}}
}

func (s *scene) claim(name string) runtime.Object {
	c := s.newClaim(name)
	c.Namespace = s.namespace
	return c
}

func (s *scene) volume(name string) runtime.Object {
	return &v1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1.PersistentVolumeSpec{
		AccessModes:                   []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce, v1.ReadWriteMany},
		Capacity:                      v1.ResourceList{v1.ResourceStorage: resource.MustParse(pick(s, "1Gi", "3Gi", "10Gi"))},
		PersistentVolumeReclaimPolicy: pick(s, v1.PersistentVolumeReclaimRetain, v1.PersistentVolumeReclaimDelete),
		PersistentVolumeSource:        v1.PersistentVolumeSource{NFS: &v1.NFSVolumeSource{Server: "nowhere.example", Path: "/x"}},
	}}
}

// autoscaler returns one for a Deployment, whose pods nobody measures.
func (s *scene) autoscaler(name string) runtime.Object {
	return &autoscalingv2.HorizontalPodAutoscaler{ObjectMeta: s.meta(name), Spec: autoscalingv2.HorizontalPodAutoscalerSpec{
		ScaleTargetRef: autoscalingv2.CrossVersionObjectReference{APIVersion: "apps/v1", Kind: "Deployment", Name: pick(s, "deployment-1", "deployment-2", "none")},
		MinReplicas:    new(int32(1 + s.IntN(3))), MaxReplicas: int32(3 + s.IntN(2)), //nolint:gosec // few
		Metrics: []autoscalingv2.MetricSpec{{Type: autoscalingv2.ResourceMetricSourceType, Resource: &autoscalingv2.ResourceMetricSource{
			Name: v1.ResourceCPU, Target: autoscalingv2.MetricTarget{Type: autoscalingv2.UtilizationMetricType, AverageUtilization: new(int32(50))},
		}}},
	}}
}

// pod returns a pod of nobody, which a workload may adopt.
func (s *scene) pod(name string) runtime.Object {
	t := s.template(pick(s, "nobody", "replicaset-1", "rc-1", "deployment-1", "statefulset-1", "daemonset-1"))
	return &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: s.namespace, Labels: t.Labels}, Spec: t.Spec}
}
