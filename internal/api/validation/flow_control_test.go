package validation

import (
	"testing"

	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	"k8s.io/apiserver/pkg/apis/flowcontrol/bootstrap"

	"wherry.dev/internal/api/defaults"
)

func TestFlowSchema(t *testing.T) {
	rule := func(subjects, rest string) string {
		return `{priorityLevelConfiguration: {name: l}, rules: [{subjects: [` + subjects + `], ` + rest + `}]}`
	}
	const everybody = `{kind: Group, group: {name: "system:authenticated"}}`
	const pods = `resourceRules: [{verbs: [get], apiGroups: [""], resources: [pods], namespaces: [default]}]`
	const at = "spec.rules[0]."
	for _, tc := range []yamlCase{
		{"fine", rule(everybody+`, {kind: User, user: {name: u}}, {kind: ServiceAccount, serviceAccount: {name: "*", namespace: n}}`, pods), nil},
		{"paths", rule(everybody, `nonResourceRules: [{verbs: ["*"], nonResourceURLs: [/, /a, /a/*]}]`), nil},
		{"cluster scope", rule(everybody, `resourceRules: [{verbs: ["*"], apiGroups: ["*"], resources: ["*"], clusterScope: true}]`), nil},
		{"nothing", `{}`, []string{"spec.priorityLevelConfiguration.name: Required value: must reference a priority level"}},
		{"numbers", `{matchingPrecedence: -1, distinguisherMethod: {type: ByMood}, priorityLevelConfiguration: {name: "a b"}}`, []string{
			"spec.matchingPrecedence: Invalid value: -1: must be a positive value",
			`spec.distinguisherMethod.type: Unsupported value: "ByMood"`, "spec.priorityLevelConfiguration.name: Invalid value",
		}},
		{"too late", `{matchingPrecedence: 10001, priorityLevelConfiguration: {name: l}}`, []string{"spec.matchingPrecedence: Invalid value: 10001: must not be greater than 10000"}},
		{"first", `{matchingPrecedence: 1, priorityLevelConfiguration: {name: l}}`, []string{"spec.matchingPrecedence: Invalid value: 1: only the schema named 'exempt' may have matchingPrecedence 1"}},
		{"empty rule", `{priorityLevelConfiguration: {name: l}, rules: [{}]}`, []string{
			at + "subjects: Required value: subjects must contain at least one value",
			"spec.rules[0]: Required value: at least one of resourceRules and nonResourceRules has to be non-empty",
		}},
		{"subjects", rule(`{kind: Dog}, {kind: User, group: {name: g}}, {kind: ServiceAccount, serviceAccount: {name: A}}, {kind: Group, group: {name: ""}}`, pods), []string{
			at + `subjects[0].kind: Unsupported value: "Dog"`,
			at + "subjects[1].user: Required value: user is required when subject kind is 'User'",
			at + "subjects[1].group: Forbidden: group is forbidden when subject kind is not 'Group'",
			at + "subjects[2].serviceAccount.name: Invalid value", at + "subjects[2].serviceAccount.namespace: Required value",
			at + "subjects[3].group.name: Required value",
		}},
		{"resources", rule(everybody, `resourceRules: [{verbs: [get, fly], apiGroups: ["*", apps], resources: [], namespaces: []}, {verbs: ["*", get], apiGroups: [], resources: ["*", a], namespaces: ["*", a]}]`), []string{
			at + "resourceRules[0].verbs: Unsupported value", at + "resourceRules[0].apiGroups: Invalid value", at + "resourceRules[0].resources: Required value",
			at + "resourceRules[0].namespaces: Required value: resource rules that are not cluster scoped must supply at least one namespace",
			at + "resourceRules[1].verbs: Invalid value", at + "resourceRules[1].apiGroups: Required value",
			at + "resourceRules[1].resources: Invalid value", at + "resourceRules[1].namespaces: Invalid value",
		}},
		{"urls", rule(everybody, `nonResourceRules: [{verbs: [], nonResourceURLs: ["", a, /a b, //a, /*/*, /a*]}, {verbs: [get], nonResourceURLs: ["*", /a]}]`), []string{
			at + "nonResourceRules[0].verbs: Required value",
			at + "nonResourceRules[0].nonResourceURLs[0]: Invalid value: \"\": must not be empty",
			at + "nonResourceRules[0].nonResourceURLs[1]: Invalid value: \"a\": must start with slash",
			at + "nonResourceRules[0].nonResourceURLs[2]: Invalid value: \"/a b\": must not contain white-space",
			at + "nonResourceRules[0].nonResourceURLs[3]: Invalid value: \"//a\": must not contain double slash",
			at + "nonResourceRules[0].nonResourceURLs[4]: Invalid value: \"/*/*\": wildcard can only do suffix matching",
			at + "nonResourceRules[0].nonResourceURLs[5]: Invalid value: \"/a*\": wildcard can only do suffix matching",
			at + "nonResourceRules[1].nonResourceURLs: Invalid value",
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := read[flowcontrolv1.FlowSchema](t, "spec: "+tc.spec)
			defaults.FlowSchema(s)
			told(t, FlowSchema(s), tc.want)
		})
	}
	told(t, FlowSchemaStatus(read[flowcontrolv1.FlowSchema](t, `{status: {conditions: [{type: A}, {type: A}, {}]}}`)), []string{
		"status.conditions[1].type: Duplicate value", "status.conditions[2].type: Required value",
	})
}

func TestPriorityLevelConfiguration(t *testing.T) {
	queue := func(q string) string {
		return `{type: Limited, limited: {limitResponse: {type: Queue, queuing: ` + q + `}}}`
	}
	const queuing = "spec.limited.limitResponse.queuing"
	for _, tc := range []yamlCase{
		{"fine", queue(`{}`), nil},
		{"reject", `{type: Limited, limited: {nominalConcurrencyShares: 0, limitResponse: {type: Reject}}}`, nil},
		{"nothing", `{}`, []string{"spec.type: Unsupported value"}},
		{"exempt", `{type: Exempt, limited: {limitResponse: {type: Reject}}}`, []string{
			"spec.type: Invalid value: \"Exempt\": must be 'Exempt' if and only if `name` is 'exempt'", "spec.limited: Forbidden: must be nil if the type is not Limited",
		}},
		{"no limits", `{type: Limited, exempt: {}}`, []string{"spec.exempt: Forbidden", "spec.limited: Required value: must not be empty when type is Limited"}},
		{"shares", `{type: Limited, limited: {nominalConcurrencyShares: -1, lendablePercent: 101, borrowingLimitPercent: -1, limitResponse: {type: Wait}}}`, []string{
			"spec.limited.nominalConcurrencyShares: Invalid value", "spec.limited.lendablePercent: Invalid value",
			"spec.limited.borrowingLimitPercent: Invalid value", `spec.limited.limitResponse.type: Unsupported value: "Wait"`,
		}},
		{"queues", queue(`{queues: -1, handSize: -1, queueLengthLimit: -1}`), []string{queuing + ".queues: Invalid value", queuing + ".handSize: Invalid value", queuing + ".queueLengthLimit: Invalid value"}},
		{"many queues", queue(`{queues: 10000001, handSize: 1}`), []string{queuing + ".queues: Invalid value: 10000001: must not be greater than 10000000"}},
		{"a large hand", queue(`{queues: 2, handSize: 3}`), []string{queuing + ".handSize: Invalid value: 3: should not be greater than queues (2)"}},
		{"entropy", queue(`{queues: 512, handSize: 10}`), []string{queuing + ".handSize: Invalid value: 10: required entropy bits"}},
		{"no queue", `{type: Limited, limited: {limitResponse: {type: Queue}}}`, []string{queuing + ": Required value"}},
		{"a queue too many", `{type: Limited, limited: {limitResponse: {type: Reject, queuing: {}}}}`, []string{queuing + ": Forbidden"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := read[flowcontrolv1.PriorityLevelConfiguration](t, "spec: "+tc.spec)
			defaults.PriorityLevelConfiguration(c)
			told(t, PriorityLevelConfiguration(c), tc.want)
		})
	}
}

// Defaults change nothing in the objects that the server starts with, so that comparing specs is
// enough to know whether somebody else did.
func TestBootstrapFlowControl(t *testing.T) {
	for _, s := range append(bootstrap.MandatoryFlowSchemas, bootstrap.SuggestedFlowSchemas...) {
		full := s.DeepCopy()
		defaults.FlowSchema(full)
		told(t, FlowSchema(full), nil)
		if full.Spec.String() != s.Spec.String() {
			t.Errorf("defaults change %s", s.Name)
		}
	}
	for _, c := range append(bootstrap.MandatoryPriorityLevelConfigurations, bootstrap.SuggestedPriorityLevelConfigurations...) {
		full := c.DeepCopy()
		defaults.PriorityLevelConfiguration(full)
		told(t, PriorityLevelConfiguration(full), nil)
		if full.Spec.String() != c.Spec.String() {
			t.Errorf("defaults change %s", c.Name)
		}
	}
	schema := bootstrap.MandatoryFlowSchemaCatchAll.DeepCopy()
	schema.Spec.MatchingPrecedence = 5
	told(t, FlowSchema(schema), []string{"spec: Invalid value"})
	level := bootstrap.MandatoryPriorityLevelConfigurationExempt.DeepCopy()
	level.Spec.Exempt.LendablePercent = new(int32(50))
	told(t, PriorityLevelConfiguration(level), nil)
	level = bootstrap.MandatoryPriorityLevelConfigurationCatchAll.DeepCopy()
	level.Spec.Limited.NominalConcurrencyShares = new(int32(50))
	told(t, PriorityLevelConfiguration(level), []string{"spec: Invalid value"})
}
