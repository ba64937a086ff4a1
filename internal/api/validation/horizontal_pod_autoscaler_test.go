package validation

import (
	"testing"

	autoscalingv2 "k8s.io/api/autoscaling/v2"

	"wherry.dev/internal/api/defaults"
)

func TestHorizontalPodAutoscaler(t *testing.T) {
	const target = `maxReplicas: 3, scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: w}`
	metric := func(m string) string { return `{` + target + `, metrics: [` + m + `]}` }
	for _, tc := range []yamlCase{
		{"fine", `{` + target + `, behavior: {scaleUp: {policies: [{type: Percent, value: 10, periodSeconds: 60}], tolerance: "0.05"}}}`, nil},
		{"a replication controller", `{maxReplicas: 3, scaleTargetRef: {apiVersion: v1, kind: ReplicationController, name: w}}`, nil},
		{"no group", `{maxReplicas: 3, scaleTargetRef: {apiVersion: v1, kind: Deployment, name: w}}`, []string{`spec.scaleTargetRef.apiVersion: Invalid value: "v1": apiVersion must specify API group`}},
		{"a version with too much", `{maxReplicas: 3, scaleTargetRef: {apiVersion: a/b/c, kind: K, name: w}}`, []string{`spec.scaleTargetRef.apiVersion: Invalid value: "a/b/c": unexpected GroupVersion string`}},
		{"sizes", `{minReplicas: 0, maxReplicas: 0, scaleTargetRef: {apiVersion: apps/v1, kind: "", name: a/b}}`, []string{
			"spec.maxReplicas: Required value: must be set and greater than 0",
			"spec.metrics: Forbidden: must specify at least one Object or External metric", "spec.scaleTargetRef.kind: Required value", "spec.scaleTargetRef.name: Invalid value",
		}},
		{"none at times", `{minReplicas: 0, maxReplicas: 3, scaleTargetRef: {apiVersion: apps/v1, kind: K, name: w}, metrics: [{type: External, external: {metric: {name: m}, target: {type: Value, value: 1}}}]}`, nil},
		{"less than nothing", `{minReplicas: -2, maxReplicas: -1, scaleTargetRef: {apiVersion: apps/v1, kind: K, name: w}}`, []string{
			"spec.minReplicas: Invalid value: -2: must be greater than or equal to 0", "spec.maxReplicas: Invalid value: -1: must be greater than or equal to 1",
		}},
		{"no type", metric(`{resource: {name: cpu, target: {type: Utilization, averageUtilization: 1}}}`), []string{"spec.metrics[0].type: Required value", "spec.metrics[0].type: Unsupported value"}},
		{"another field", metric(`{type: Pods, resource: {name: cpu, target: {type: Utilization, averageUtilization: 1}}}`), []string{"spec.metrics[0].pods: Required value: must populate information for the given metric source"}},
		{"two fields", metric(`{type: Pods, pods: {metric: {name: m}, target: {type: AverageValue, averageValue: 1}}, resource: {name: cpu, target: {type: Utilization, averageUtilization: 1}}}`), []string{"spec.metrics[0].resource: Forbidden: must populate the given metric source only"}},
		{"targets", metric(`{type: Resource, resource: {name: "", target: {type: Much, averageUtilization: 0, averageValue: 0}}}`), []string{
			"spec.metrics[0].resource.name: Required value", "spec.metrics[0].resource.target.type: Invalid value", "spec.metrics[0].resource.target.averageUtilization: Invalid value",
			"spec.metrics[0].resource.target.averageValue: Invalid value", "spec.metrics[0].resource.target.averageValue: Forbidden",
		}},
		{"a container", metric(`{type: ContainerResource, containerResource: {name: luck, container: "", target: {type: Utilization}}}`), []string{
			"spec.metrics[0].containerResource.name: Invalid value", "spec.metrics[0].containerResource.name: Invalid value", "spec.metrics[0].containerResource.container: Required value", "spec.metrics[0].containerResource.target.averageUtilization: Required value",
		}},
		{"the world", metric(`{type: External, external: {metric: {name: a/b}, target: {type: Value, value: 1, averageValue: 1}}}`), []string{"spec.metrics[0].external.metric.name: Invalid value", "spec.metrics[0].external.target.value: Forbidden"}},
		{"an object", metric(`{type: Object, object: {describedObject: {kind: Service, name: ""}, metric: {name: ""}, target: {type: Value}}}`), []string{
			"spec.metrics[0].object.describedObject.name: Required value", "spec.metrics[0].object.metric.name: Required value", "spec.metrics[0].object.target.averageValue: Required value",
		}},
		{"behaviour", `{` + target + `, behavior: {scaleDown: {stabilizationWindowSeconds: 3601, selectPolicy: Some, policies: [{type: All, value: 0, periodSeconds: 1801}], tolerance: -1}, scaleUp: {stabilizationWindowSeconds: -1, policies: []}}}`, []string{
			"spec.behavior.scaleDown.stabilizationWindowSeconds: Invalid value: 3601: must be less than or equal to 3600", `spec.behavior.scaleDown.selectPolicy: Unsupported value: "Some"`,
			`spec.behavior.scaleDown.policies[0].type: Unsupported value: "All"`, "spec.behavior.scaleDown.policies[0].value: Invalid value: 0", "spec.behavior.scaleDown.policies[0].periodSeconds: Invalid value: 1801",
			"spec.behavior.scaleDown.tolerance: Invalid value", "spec.behavior.scaleUp.stabilizationWindowSeconds: Invalid value: -1", "spec.behavior.scaleUp.policies: Required value: must specify at least one Policy",
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			a := read[autoscalingv2.HorizontalPodAutoscaler](t, "spec: "+tc.spec)
			defaults.HorizontalPodAutoscaler(a)
			told(t, HorizontalPodAutoscaler(a), tc.want)
		})
	}
	old := read[autoscalingv2.HorizontalPodAutoscaler](t, `spec: {minReplicas: 0, maxReplicas: 3, scaleTargetRef: {apiVersion: v1, kind: Deployment, name: w}, metrics: [{type: Object, object: {describedObject: {apiVersion: a/b/c, kind: S, name: s}, metric: {name: m}, target: {type: Value, value: 1}}}]}`)
	told(t, HorizontalPodAutoscalerUpdate(old, old), nil)
	other := old.DeepCopy()
	other.Spec.ScaleTargetRef.Kind = "StatefulSet"
	told(t, HorizontalPodAutoscalerUpdate(other, old), []string{"spec.scaleTargetRef.apiVersion: Invalid value"})
}
