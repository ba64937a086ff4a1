package validation

import (
	"fmt"
	"strings"
	"testing"

	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"wherry.dev/internal/api/defaults"
)

// noBad is an Expression that refuses what contains "bad", unless it is stored.
func noBad(at *field.Path, expression string, stored bool) *field.Error {
	if strings.Contains(expression, "bad") && !stored {
		return field.Invalid(at, expression, "bad")
	}
	return nil
}

func TestResourceClaim(t *testing.T) {
	for _, tc := range []yamlCase{
		{"fine", `{requests: [{name: a, exactly: {deviceClassName: c, selectors: [{cel: {expression: good}}]}}, {name: b, firstAvailable: [{name: x, deviceClassName: c}, {name: y, deviceClassName: d, allocationMode: All}]}],
			constraints: [{requests: [a, b/x], matchAttribute: gpu.example.com/model}], config: [{requests: [b], opaque: {driver: gpu.example.com, parameters: {a: 1}}}]}`, nil},
		{"neither", `{requests: [{name: a}]}`, []string{"spec.devices.requests[0]: Required value: exactly one of `exactly` or `firstAvailable` is required"}},
		{"both", `{requests: [{name: a, exactly: {deviceClassName: c}, firstAvailable: [{name: x, deviceClassName: c}]}]}`, []string{"spec.devices.requests[0]: Invalid value: null: exactly one"}},
		{"twice", `{requests: [{name: a, exactly: {deviceClassName: c}}, {name: a, exactly: {deviceClassName: c}}]}`, []string{`spec.devices.requests[1]: Duplicate value: "a"`}},
		{"counts", `{requests: [{name: a, exactly: {deviceClassName: c, count: -1}}, {name: b, exactly: {deviceClassName: c, count: 1, allocationMode: All}}, {name: c, exactly: {deviceClassName: "", allocationMode: Some}}]}`, []string{
			"spec.devices.requests[0].exactly.count: Invalid value: -1: must be greater than zero",
			"spec.devices.requests[1].exactly.count: Invalid value: 1: must not be specified when allocationMode is 'All'",
			"spec.devices.requests[2].exactly.deviceClassName: Required value", `spec.devices.requests[2].exactly.allocationMode: Unsupported value: "Some"`,
		}},
		{"selectors", `{requests: [{name: a, exactly: {deviceClassName: c, selectors: [{}, {cel: {expression: bad}}]}}]}`, []string{
			"spec.devices.requests[0].exactly.selectors[0].cel: Required value", `spec.devices.requests[0].exactly.selectors[1].cel.expression: Invalid value: "bad": bad`,
		}},
		{"tolerations", `{requests: [{name: a, exactly: {deviceClassName: c, tolerations: [{key: a, operator: Exists, value: x}, {operator: Like}, {operator: Equal, value: "a b", effect: Never}]}}]}`, []string{
			"spec.devices.requests[0].exactly.tolerations[0].value: Invalid value: \"x\": must be empty for operator `Exists`",
			`spec.devices.requests[0].exactly.tolerations[1].operator: Unsupported value: "Like"`,
			"spec.devices.requests[0].exactly.tolerations[2].value: Invalid value", `spec.devices.requests[0].exactly.tolerations[2].effect: Unsupported value: "Never"`,
		}},
		{"references", `{requests: [{name: a, exactly: {deviceClassName: c}}], constraints: [{requests: [b], matchAttribute: a}, {requests: [a/x, a/b/c]}]}`, []string{
			"spec.devices.constraints[0].requests[0]: Invalid value: \"b\": must be the name of a request", "spec.devices.constraints[0].matchAttribute: Invalid value: \"a\": a fully qualified name",
			"spec.devices.constraints[1].requests[0]: Invalid value", "spec.devices.constraints[1].requests[1]: Invalid value", "spec.devices.constraints[1]: Required value",
		}},
		{"configuration", `{requests: [], config: [{}, {opaque: {driver: "", parameters: null}}, {opaque: {driver: d, parameters: [1]}}]}`, []string{
			"spec.devices.config[0].opaque: Required value", "spec.devices.config[1].opaque.driver: Required value", "spec.devices.config[1].opaque.parameters: Required value",
			`spec.devices.config[2].opaque.parameters: Invalid value: "<value omitted>": must be a valid JSON object`,
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := read[resourcev1.ResourceClaim](t, "spec: {devices: "+tc.spec+"}")
			defaults.ResourceClaim(c)
			told(t, ResourceClaim(c, noBad), tc.want)
			tmpl := &resourcev1.ResourceClaimTemplate{Spec: resourcev1.ResourceClaimTemplateSpec{Spec: c.Spec}}
			var want []string
			for _, w := range tc.want {
				want = append(want, strings.Replace(w, "spec.", "spec.spec.", 1))
			}
			told(t, ResourceClaimTemplate(tmpl, noBad), want)
		})
	}
	many := &resourcev1.ResourceClaim{}
	for i := range 33 {
		many.Spec.Devices.Requests = append(many.Spec.Devices.Requests, resourcev1.DeviceRequest{Name: fmt.Sprint("r", i)})
	}
	told(t, ResourceClaim(many, noBad), []string{"spec.devices.requests: Too many: 33: must have at most 32 items"})
	tmpl := &resourcev1.ResourceClaimTemplate{Spec: resourcev1.ResourceClaimTemplateSpec{ObjectMeta: metav1.ObjectMeta{Name: "x"}}}
	told(t, ResourceClaimTemplate(tmpl, noBad), []string{"spec.metadata.name: Forbidden: cannot be set"})
}

func TestStoredExpressionsMayStay(t *testing.T) {
	old := read[resourcev1.DeviceClass](t, `spec: {selectors: [{cel: {expression: bad}}]}`)
	same := read[resourcev1.DeviceClass](t, `spec: {selectors: [{cel: {expression: bad}}], extendedResourceName: cpu}`)
	told(t, DeviceClassUpdate(same, old, noBad), []string{"spec.extendedResourceName: Invalid value"})
	told(t, DeviceClass(old, noBad), []string{"spec.selectors[0].cel.expression: Invalid value"})
}

func TestResourceClaimStatus(t *testing.T) {
	const spec = `spec: {devices: {requests: [{name: a, exactly: {deviceClassName: c}}]}}`
	const allocation = `allocation: {devices: {results: [{request: a, driver: d.example, pool: p, device: d}]}}`
	old := read[resourcev1.ResourceClaim](t, spec)
	for _, tc := range []yamlCase{
		{"fine", `{` + allocation + `, reservedFor: [{resource: pods, name: p, uid: u}], devices: [{driver: d.example, pool: p, device: d, conditions: []}]}`, nil},
		{"reserved without", `{reservedFor: [{resource: pods, name: p, uid: u}]}`, []string{"status.reservedFor: Forbidden: may not be specified when `allocated` is not set"}},
		{"for whom", `{` + allocation + `, reservedFor: [{resource: "", name: p, uid: u}, {resource: pods, name: q, uid: u}]}`, []string{"status.reservedFor[0].resource: Required value", `status.reservedFor[1]: Duplicate value: "u"`}},
		{"of another device", `{` + allocation + `, devices: [{driver: d.example, pool: p, device: e, conditions: []}]}`, []string{"status.devices[0]: Invalid value"}},
		{"network", `{` + allocation + `, devices: [{driver: d.example, pool: p, device: d, conditions: [], networkData: {ips: [10.0.0.1]}}]}`, []string{"status.devices[0].networkData.ips[0]: Invalid value"}},
		{"result", `{allocation: {devices: {results: [{request: z, driver: d, pool: "", device: D, shareID: x, bindingConditions: [a]}]}}}`, []string{
			"status.allocation.devices.results[0].request: Invalid value", "status.allocation.devices.results[0].pool: Required value",
			"status.allocation.devices.results[0].device: Invalid value", "status.allocation.devices.results[0].shareID: Invalid value",
			"status.allocation.devices.results[0].bindingFailureConditions: Invalid value",
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			told(t, ResourceClaimStatusUpdate(read[resourcev1.ResourceClaim](t, spec+"\nstatus: "+tc.spec), old), tc.want)
		})
	}
	has := read[resourcev1.ResourceClaim](t, spec+"\nstatus: {"+allocation+"}")
	other := has.DeepCopy()
	other.Status.Allocation.Devices.Results[0].Device = "e"
	told(t, ResourceClaimStatusUpdate(other, has), []string{"status.allocation: Invalid value"})
	ending := has.DeepCopy()
	ending.DeletionTimestamp = new(metav1.Now())
	ending.Status.ReservedFor = []resourcev1.ResourceClaimConsumerReference{{Resource: "pods", Name: "p", UID: "u"}}
	told(t, ResourceClaimStatusUpdate(ending, has), []string{"status.reservedFor: Forbidden: new entries may not be added"})
	told(t, ResourceClaimStatusUpdate(ending, ending), nil)
}

func TestResourceSlice(t *testing.T) {
	on := func(devices string) string {
		return `{driver: d.example, nodeName: n, pool: {name: p, resourceSliceCount: 1}, devices: [` + devices + `]}`
	}
	for _, tc := range []yamlCase{
		{"fine", on(`{name: a, attributes: {model: {string: x}, d.example/version: {version: 1.2.3-rc.1+b}}, capacity: {memory: {value: 1Gi}}, taints: [{key: k, effect: NoSchedule}], consumesCounters: [{counterSet: c, counters: {m: {value: 1}}}]}`), nil},
		{"nowhere", `{driver: d, pool: {name: p, resourceSliceCount: 0, generation: -1}}`, []string{"spec.pool.resourceSliceCount: Invalid value: 0", "spec.pool.generation: Invalid value: -1", "spec: Required value: exactly one of `nodeName`"}},
		{"everywhere", `{driver: d, nodeName: n, allNodes: true, pool: {name: p, resourceSliceCount: 1}}`, []string{"spec: Invalid value: \"{`nodeName`, `allNodes`}\": exactly one"}},
		{"not", `{driver: d, nodeName: "", allNodes: false, pool: {name: p, resourceSliceCount: 1}}`, []string{"spec.nodeName: Invalid value", "spec.allNodes: Invalid value: false", "spec: Required value"}},
		{"counters or devices", `{driver: d, nodeName: n, pool: {name: p, resourceSliceCount: 1}, devices: [{name: a}], sharedCounters: [{name: c, counters: {a: {value: 1}}}]}`, []string{"spec: Invalid value: \"\": only one of"}},
		{"counters", `{driver: d, nodeName: n, pool: {name: p, resourceSliceCount: 1}, sharedCounters: [{name: "", counters: {}}]}`, []string{"spec.sharedCounters[0].name: Required value", "spec.sharedCounters[0].counters: Required value"}},
		{"twice", on(`{name: a}, {name: a}`), []string{`spec.devices[1]: Duplicate value: "a"`}},
		{"attributes", on(`{name: a, attributes: {a: {}, b: {string: x, int: 1}, c-d: {bool: true}, e: {version: "1"}, f: {strings: []}}}`), []string{
			`spec.devices[0].attributes[a]: Invalid value`, `spec.devices[0].attributes[b]: Invalid value`, `spec.devices[0].attributes: Invalid value: "c-d"`,
			`spec.devices[0].attributes[e].version: Invalid value`, `spec.devices[0].attributes[f].strings: Invalid value`,
		}},
		{"taints", on(`{name: a, taints: [{key: "", effect: Never}]}`), []string{`spec.devices[0].taints[0].key: Invalid value: "": name part must be non-empty`, `spec.devices[0].taints[0].key: Invalid value: "": name part must consist`, "spec.devices[0].taints[0].effect: Unsupported value"}},
		{"its own node", on(`{name: a, nodeName: m}`), []string{"spec.devices[0]: Invalid value: null: `nodeName`, `nodeSelector` and `allNodes` can only be set"}},
		{"each its own node", `{driver: d, perDeviceNodeSelection: true, pool: {name: p, resourceSliceCount: 1}, devices: [{name: a, nodeName: n}, {name: b}]}`, []string{"spec.devices[1]: Required value"}},
		{"policy for one", on(`{name: a, capacity: {m: {value: 1, requestPolicy: {default: 1}}}}`), []string{"spec.devices[0].capacity[m].requestPolicy: Forbidden: allowMultipleAllocations must be true"}},
		{"policies", on(`{name: a, allowMultipleAllocations: true, capacity: {m: {value: 4, requestPolicy: {default: 3, validValues: [2, 1, 8]}}}}, {name: b, allowMultipleAllocations: true, capacity: {m: {value: 4, requestPolicy: {default: 1, validRange: {min: 2, max: 8, step: 0}}}}}`), []string{
			"spec.devices[0].capacity[m].requestPolicy.validValues[2]: Invalid value", "spec.devices[0].capacity[m].requestPolicy.validValues[1]: Invalid value",
			"spec.devices[0].capacity[m].requestPolicy.validValues: Invalid value", "spec.devices[1].capacity[m].requestPolicy.validRange.min: Invalid value",
			"spec.devices[1].capacity[m].requestPolicy.validRange.max: Invalid value", "spec.devices[1].capacity[m].requestPolicy.validRange.step: Invalid value",
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			told(t, ResourceSlice(read[resourcev1.ResourceSlice](t, "spec: "+tc.spec)), tc.want)
		})
	}
	odd := read[resourcev1.ResourceSlice](t, "spec: "+on(`{name: a, taints: [{key: k, effect: Never}]}`))
	told(t, ResourceSliceUpdate(odd, odd), nil)
	moved := odd.DeepCopy()
	moved.Spec.NodeName, moved.Spec.Driver, moved.Spec.Pool.Name = new("m"), "e", "q"
	told(t, ResourceSliceUpdate(moved, odd), []string{"spec.nodeName: Invalid value", "spec.driver: Invalid value", "spec.pool.name: Invalid value"})
}
