package validation

import (
	"fmt"
	"slices"
	"strings"

	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/apis/flowcontrol/bootstrap"
	"k8s.io/apiserver/pkg/util/shufflesharding"
)

// maxQueues is the largest number of queues of a priority level.
const maxQueues = 10 * 1000 * 1000

// flowVerbs are the verbs that a flow schema may select, besides all of them.
var flowVerbs = []string{"get", "list", "create", "update", "delete", "deletecollection", "patch", "watch", "proxy"}

// FlowSchema checks a flow schema, which may also replace another one. Those that the server cannot
// work without have a fixed spec.
func FlowSchema(s *flowcontrolv1.FlowSchema) field.ErrorList {
	p, at := &problems{list: FlowSchemaStatus(s)}, field.NewPath("spec")
	p.flowSchemaSpec(at, s.Name, &s.Spec)
	for _, m := range bootstrap.MandatoryFlowSchemas {
		if m.Name == s.Name && !apiequality.Semantic.DeepEqual(s.Spec, m.Spec) {
			p.invalid(at, s.Spec, "spec of '%s' must equal the fixed value", s.Name)
		}
	}
	return p.list
}

// FlowSchemaStatus checks the status of a flow schema.
func FlowSchemaStatus(s *flowcontrolv1.FlowSchema) field.ErrorList {
	p := &problems{}
	var types []string
	for _, c := range s.Status.Conditions {
		types = append(types, string(c.Type))
	}
	p.conditionTypes(types)
	return p.list
}

// conditionTypes checks that every condition in the status has a type, and one of its own.
func (p *problems) conditionTypes(types []string) {
	for i, typ := range types {
		at := field.NewPath("status", "conditions").Index(i).Child("type")
		if slices.Contains(types[:i], typ) {
			p.add(field.Duplicate(at, typ))
		}
		p.present(at, typ)
	}
}

func (p *problems) flowSchemaSpec(at path, name string, spec *flowcontrolv1.FlowSchemaSpec) {
	precedence := at.Child("matchingPrecedence")
	if spec.MatchingPrecedence <= 0 {
		p.invalid(precedence, spec.MatchingPrecedence, "must be a positive value")
	}
	if spec.MatchingPrecedence > flowcontrolv1.FlowSchemaMaxMatchingPrecedence {
		p.invalid(precedence, spec.MatchingPrecedence, "must not be greater than %d", flowcontrolv1.FlowSchemaMaxMatchingPrecedence)
	}
	if spec.MatchingPrecedence == 1 && name != flowcontrolv1.FlowSchemaNameExempt {
		p.invalid(precedence, spec.MatchingPrecedence, "only the schema named 'exempt' may have matchingPrecedence 1")
	}
	if m := spec.DistinguisherMethod; m != nil {
		oneOf(p, at.Child("distinguisherMethod", "type"), m.Type,
			flowcontrolv1.FlowDistinguisherMethodByNamespaceType, flowcontrolv1.FlowDistinguisherMethodByUserType)
	}
	level := at.Child("priorityLevelConfiguration", "name")
	if n := spec.PriorityLevelConfiguration.Name; n != "" {
		matches(p, level, n, apivalidation.NameIsDNSSubdomain(n, false))
	} else {
		p.required(level, "must reference a priority level")
	}
	for i := range spec.Rules {
		p.flowRule(at.Child("rules").Index(i), &spec.Rules[i])
	}
}

func (p *problems) flowRule(at path, rule *flowcontrolv1.PolicyRulesWithSubjects) {
	if len(rule.Subjects) == 0 {
		p.required(at.Child("subjects"), "subjects must contain at least one value")
	}
	for i := range rule.Subjects {
		p.flowSubject(at.Child("subjects").Index(i), &rule.Subjects[i])
	}
	if len(rule.ResourceRules)+len(rule.NonResourceRules) == 0 {
		p.required(at, "at least one of resourceRules and nonResourceRules has to be non-empty")
	}
	for i := range rule.ResourceRules {
		p.flowResources(at.Child("resourceRules").Index(i), &rule.ResourceRules[i])
	}
	for i := range rule.NonResourceRules {
		r, at := &rule.NonResourceRules[i], at.Child("nonResourceRules").Index(i)
		p.flowVerbs(at.Child("verbs"), r.Verbs)
		p.flowURLs(at.Child("nonResourceURLs"), r.NonResourceURLs)
	}
}

// flowSubject checks that a subject is what its kind says, and nothing else.
func (p *problems) flowSubject(at path, s *flowcontrolv1.Subject) {
	oneOf(p, at.Child("kind"), s.Kind, flowcontrolv1.SubjectKindServiceAccount, flowcontrolv1.SubjectKindUser, flowcontrolv1.SubjectKindGroup)
	is := func(kind flowcontrolv1.SubjectKind, name string, present bool) bool {
		switch {
		case s.Kind == kind && !present:
			p.required(at.Child(name), fmt.Sprintf("%s is required when subject kind is '%s'", name, kind))
		case s.Kind != kind && present:
			p.forbidden(at.Child(name), "%s is forbidden when subject kind is not '%s'", name, kind)
		}
		return s.Kind == kind && present
	}
	if is(flowcontrolv1.SubjectKindServiceAccount, "serviceAccount", s.ServiceAccount != nil) {
		p.flowAccount(at.Child("serviceAccount"), s.ServiceAccount)
	}
	if is(flowcontrolv1.SubjectKindUser, "user", s.User != nil) {
		p.present(at.Child("user", "name"), s.User.Name)
	}
	if is(flowcontrolv1.SubjectKindGroup, "group", s.Group != nil) {
		p.present(at.Child("group", "name"), s.Group.Name)
	}
}

func (p *problems) flowAccount(at path, a *flowcontrolv1.ServiceAccountSubject) {
	if p.present(at.Child("name"), a.Name) && a.Name != flowcontrolv1.NameAll {
		matches(p, at.Child("name"), a.Name, apivalidation.ValidateServiceAccountName(a.Name, false))
	}
	if a.Namespace == "" {
		p.required(at.Child("namespace"), "must specify namespace for service account")
		return
	}
	matches(p, at.Child("namespace"), a.Namespace, apivalidation.ValidateNamespaceName(a.Namespace, false))
}

func (p *problems) flowVerbs(at path, verbs []string) {
	if p.oneOrAll(at, verbs, "verbs must contain at least one value", "verbs") || len(verbs) == 0 {
		return
	}
	for _, v := range verbs {
		if !slices.Contains(flowVerbs, v) {
			sorted := slices.Sorted(slices.Values(flowVerbs))
			p.add(field.NotSupported(at, verbs, sorted))
			return
		}
	}
}

func (p *problems) flowURLs(at path, urls []string) {
	if p.oneOrAll(at, urls, "nonResourceURLs must contain at least one value", "non-resource URLs") {
		return
	}
	for i, url := range urls {
		at, stars := at.Index(i), strings.Count(url, "*")
		switch {
		case url == "":
			p.invalid(at, url, "must not be empty")
		case url == "/":
		case !strings.HasPrefix(url, "/"):
			p.invalid(at, url, "must start with slash")
		case strings.Contains(url, " "):
			p.invalid(at, url, "must not contain white-space")
		case strings.Contains(url, "//"):
			p.invalid(at, url, "must not contain double slash")
		case stars > 1 || stars == 1 && !strings.HasSuffix(url, "/*"):
			p.invalid(at, url, "wildcard can only do suffix matching")
		}
	}
}

func (p *problems) flowResources(at path, r *flowcontrolv1.ResourcePolicyRule) {
	p.flowVerbs(at.Child("verbs"), r.Verbs)
	p.oneOrAll(at.Child("apiGroups"), r.APIGroups, "resource rules must supply at least one api group", "api groups")
	p.oneOrAll(at.Child("resources"), r.Resources, "resource rules must supply at least one resource", "resources")
	namespaces := at.Child("namespaces")
	if len(r.Namespaces) == 0 && r.ClusterScope {
		return
	}
	if p.oneOrAll(namespaces, r.Namespaces, "resource rules that are not cluster scoped must supply at least one namespace", "namespaces") {
		return
	}
	for i, n := range r.Namespaces {
		for _, msg := range apivalidation.ValidateNamespaceName(n, false) {
			p.invalid(namespaces.Index(i), n, "%s", "each member of this list must be '*' or a DNS-1123 label; "+msg)
		}
	}
}

// oneOrAll checks that a list has at least one entry, and none beside "*", which it returns whether
// the list has.
func (p *problems) oneOrAll(at path, list []string, none, what string) (all bool) {
	all = slices.Contains(list, "*")
	switch {
	case len(list) == 0:
		p.required(at, none)
	case all && len(list) > 1:
		p.invalid(at, list, "if '*' is present, must not specify other %s", what)
	}
	return all
}

// PriorityLevelConfiguration checks a priority level, which may also replace another one. Those that
// the server cannot work without have a fixed spec, but for the shares of the exempt one.
func PriorityLevelConfiguration(c *flowcontrolv1.PriorityLevelConfiguration) field.ErrorList {
	p, at := &problems{list: PriorityLevelConfigurationStatus(c)}, field.NewPath("spec")
	p.priorityLevelSpec(at, c.Name, &c.Spec)
	for _, m := range bootstrap.MandatoryPriorityLevelConfigurations {
		if m.Name != c.Name {
			continue
		}
		have, but := c.Spec, ""
		if c.Name == flowcontrolv1.PriorityLevelConfigurationNameExempt {
			have.Exempt, but = m.Spec.Exempt, " except the 'spec.exempt' field"
		}
		if !apiequality.Semantic.DeepEqual(have, m.Spec) {
			p.invalid(at, c.Spec, "spec of '%s'%s must equal the fixed value", c.Name, but)
		}
	}
	return p.list
}

// PriorityLevelConfigurationStatus checks the status of a priority level.
func PriorityLevelConfigurationStatus(c *flowcontrolv1.PriorityLevelConfiguration) field.ErrorList {
	p := &problems{}
	var types []string
	for _, c := range c.Status.Conditions {
		types = append(types, string(c.Type))
	}
	p.conditionTypes(types)
	return p.list
}

func (p *problems) priorityLevelSpec(at path, name string, spec *flowcontrolv1.PriorityLevelConfigurationSpec) {
	exempt := spec.Type == flowcontrolv1.PriorityLevelEnablementExempt
	if (name == flowcontrolv1.PriorityLevelConfigurationNameExempt) != exempt {
		p.invalid(at.Child("type"), spec.Type, "must be 'Exempt' if and only if `name` is 'exempt'")
	}
	switch {
	case exempt:
		if spec.Limited != nil {
			p.forbidden(at.Child("limited"), "must be nil if the type is not Limited")
		}
		if e := spec.Exempt; e != nil {
			p.shares(at.Child("exempt"), e.NominalConcurrencyShares, e.LendablePercent)
		}
	case spec.Type == flowcontrolv1.PriorityLevelEnablementLimited:
		if spec.Exempt != nil {
			p.forbidden(at.Child("exempt"), "must be nil if the type is Limited")
		}
		if spec.Limited == nil {
			p.required(at.Child("limited"), "must not be empty when type is Limited")
			return
		}
		p.limitedLevel(at.Child("limited"), spec.Limited)
	default:
		oneOf(p, at.Child("type"), spec.Type, flowcontrolv1.PriorityLevelEnablementExempt, flowcontrolv1.PriorityLevelEnablementLimited)
	}
}

func (p *problems) shares(at path, nominal, lendable *int32) {
	if nominal != nil && *nominal < 0 {
		p.invalid(at.Child("nominalConcurrencyShares"), *nominal, "must be a non-negative integer")
	}
	if lendable != nil && (*lendable < 0 || *lendable > 100) {
		p.invalid(at.Child("lendablePercent"), *lendable, "must be between 0 and 100, inclusive")
	}
}

func (p *problems) limitedLevel(at path, l *flowcontrolv1.LimitedPriorityLevelConfiguration) {
	p.shares(at, l.NominalConcurrencyShares, l.LendablePercent)
	if b := l.BorrowingLimitPercent; b != nil && *b < 0 {
		p.invalid(at.Child("borrowingLimitPercent"), *b, "if specified, must be a non-negative integer")
	}
	response, queuing := &l.LimitResponse, at.Child("limitResponse", "queuing")
	switch response.Type {
	case flowcontrolv1.LimitResponseTypeReject:
		if response.Queuing != nil {
			p.forbidden(queuing, "must be nil if limited.limitResponse.type is not Limited")
		}
	case flowcontrolv1.LimitResponseTypeQueue:
		if response.Queuing == nil {
			p.required(queuing, "must not be empty if limited.limitResponse.type is Limited")
			return
		}
		p.flowQueues(queuing, response.Queuing)
	default:
		oneOf(p, at.Child("limitResponse", "type"), response.Type, flowcontrolv1.LimitResponseTypeQueue, flowcontrolv1.LimitResponseTypeReject)
	}
}

func (p *problems) flowQueues(at path, q *flowcontrolv1.QueuingConfiguration) {
	if q.QueueLengthLimit <= 0 {
		p.invalid(at.Child("queueLengthLimit"), q.QueueLengthLimit, "must be positive")
	}
	switch {
	case q.Queues <= 0:
		p.invalid(at.Child("queues"), q.Queues, "must be positive")
	case q.Queues > maxQueues:
		p.invalid(at.Child("queues"), q.Queues, "must not be greater than %d", maxQueues)
	}
	hand := at.Child("handSize")
	switch {
	case q.HandSize <= 0:
		p.invalid(hand, q.HandSize, "must be positive")
	case q.HandSize > q.Queues:
		p.invalid(hand, q.HandSize, "should not be greater than queues (%d)", q.Queues)
	default:
		if bits := shufflesharding.RequiredEntropyBits(int(q.Queues), int(q.HandSize)); bits > shufflesharding.MaxHashBits {
			p.invalid(hand, q.HandSize, "required entropy bits of deckSize %d and handSize %d should not be greater than %d",
				q.Queues, q.HandSize, shufflesharding.MaxHashBits)
		}
	}
}
