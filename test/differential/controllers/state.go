package main

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// looked are the resources that are compared.
var looked = []schema.GroupVersionResource{
	{Version: "v1", Resource: "pods"},
	{Version: "v1", Resource: "services"},
	{Version: "v1", Resource: "endpoints"},
	{Version: "v1", Resource: "serviceaccounts"},
	{Version: "v1", Resource: "configmaps"},
	{Version: "v1", Resource: "resourcequotas"},
	{Version: "v1", Resource: "replicationcontrollers"},
	{Version: "v1", Resource: "persistentvolumeclaims"},
	{Group: "apps", Version: "v1", Resource: "deployments"},
	{Group: "apps", Version: "v1", Resource: "replicasets"},
	{Group: "apps", Version: "v1", Resource: "statefulsets"},
	{Group: "apps", Version: "v1", Resource: "daemonsets"},
	{Group: "apps", Version: "v1", Resource: "controllerrevisions"},
	{Group: "batch", Version: "v1", Resource: "jobs"},
	{Group: "batch", Version: "v1", Resource: "cronjobs"},
	{Group: "policy", Version: "v1", Resource: "poddisruptionbudgets"},
	{Group: "discovery.k8s.io", Version: "v1", Resource: "endpointslices"},
	{Group: "autoscaling", Version: "v2", Resource: "horizontalpodautoscalers"},
	{Version: "v1", Resource: "events"},
}

// cluster are those without a namespace.
var cluster = []schema.GroupVersionResource{
	{Version: "v1", Resource: "nodes"},
	{Version: "v1", Resource: "persistentvolumes"},
}

var (
	random  = regexp.MustCompile(`-[bcdfghjklmnpqrstvwxz2456789]{5}\b`) // at the end of a name
	timed   = regexp.MustCompile(`\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z`)
	podIP   = regexp.MustCompile(`10\.244\.\d+\.\d+`)
	svcIP   = regexp.MustCompile(`10\.0\.\d+\.\d+`)
	scaled  = regexp.MustCompile(`(Scaled (?:up|down) replica set \S+) from \d+ to \d+`)
	chosen  = regexp.MustCompile(`Chose "[^"]*" arbitrarily`)
	pemText = regexp.MustCompile(`-----BEGIN CERTIFICATE-----[^-]*-----END CERTIFICATE-----`)
)

// state returns every object of a namespace, and what of the cluster belongs to it, in a form that is the same for
// objects which differ only by chance: names that were made up, UIDs, versions, times and addresses. It is sorted.
func (s *side) state(ctx context.Context, namespace string) ([]string, error) {
	var all []unstructured.Unstructured
	for _, gvr := range slices.Concat(looked, cluster) {
		list, err := s.resource(namespace, gvr).List(ctx, metav1.ListOptions{})
		if err != nil {
			return nil, fmt.Errorf("list %s: %w", gvr.Resource, err)
		}
		all = append(all, list.Items...)
	}
	names := s.names(all)
	var out []string
	events := map[string]bool{}
	for i := range all {
		text, err := plain(&all[i], names)
		if err != nil {
			return nil, err
		}
		if all[i].GetKind() == "Event" {
			if strings.Contains(text, "the object has been modified") {
				continue // it was written again
			}
			events[text] = true // how often does not matter
			continue
		}
		out = append(out, text)
	}
	for e := range events {
		out = append(out, e)
	}
	slices.Sort(out)
	return out, nil
}

// names replaces UIDs by what they are of, or were.
func (s *side) names(all []unstructured.Unstructured) *strings.Replacer {
	if s.seen == nil {
		s.seen = map[string]string{}
	}
	for _, o := range all {
		s.seen[string(o.GetUID())] = "<" + o.GetKind() + " " + o.GetName() + ">"
	}
	var pairs []string
	for uid, name := range s.seen {
		pairs = append(pairs, uid, name)
	}
	return strings.NewReplacer(pairs...)
}

// plain returns an object as text.
func plain(o *unstructured.Unstructured, names *strings.Replacer) (string, error) {
	kind := o.GetKind()
	if kind == "Event" {
		return eventOf(o, names), nil
	}
	for _, field := range []string{"managedFields", "resourceVersion", "uid"} {
		unstructured.RemoveNestedField(o.Object, "metadata", field)
	}
	if kind == "ReplicaSet" || kind == "ReplicationController" { // how many steps it took does not matter
		unstructured.RemoveNestedField(o.Object, "metadata", "generation")
		unstructured.RemoveNestedField(o.Object, "status", "observedGeneration")
	}
	if kind == "HorizontalPodAutoscaler" { // upstream does not say that it has seen one whose target is not there
		unstructured.RemoveNestedField(o.Object, "status", "observedGeneration")
		conditions, _, _ := unstructured.NestedSlice(o.Object, "status", "conditions")
		for _, c := range conditions {
			if c, ok := c.(map[string]any); ok {
				delete(c, "observedGeneration")
			}
		}
		if len(conditions) > 0 {
			_ = unstructured.SetNestedSlice(o.Object, conditions, "status", "conditions") // it was one
		}
	}
	if kind == "Pod" && o.GetLabels()["daemon"] == "" {
		unstructured.RemoveNestedField(o.Object, "spec", "nodeName")
		unstructured.RemoveNestedField(o.Object, "metadata", "labels", v1.LabelTopologyZone)
	}
	if kind == "ResourceQuota" { // upstream counts again at a deletion, and every five minutes
		unstructured.RemoveNestedField(o.Object, "status", "used")
	}
	// Which of several changes an object's last one followed is a matter of time.
	unstructured.RemoveNestedField(o.Object, "metadata", "annotations", v1.EndpointsLastChangeTriggerTime)
	if kind == "EndpointSlice" {
		unstructured.RemoveNestedField(o.Object, "metadata", "generation")
	}
	order(o.Object, names)
	text, err := json.Marshal(o.Object)
	if err != nil {
		return "", err
	}
	return kind + " " + same(string(text), names), nil
}

// same replaces what differs by chance.
func same(text string, names *strings.Replacer) string {
	text = names.Replace(text)
	text = random.ReplaceAllString(text, "-*")
	text = timed.ReplaceAllString(text, "TIME")
	text = podIP.ReplaceAllString(text, "POD-IP")
	text = svcIP.ReplaceAllString(text, "SERVICE-IP")
	return pemText.ReplaceAllString(text, "CERTIFICATE")
}

// order removes what differs by chance, and sorts lists whose order means nothing.
func order(content map[string]any, names *strings.Replacer) {
	delete(content, "resourceVersion") // of a reference
	for key, value := range content {
		switch v := value.(type) {
		case map[string]any:
			order(v, names)
		case []any:
			for _, e := range v {
				if m, ok := e.(map[string]any); ok {
					order(m, names)
					delete(m, "nodeName") // of an endpoint: which pod of several is where does not matter
					delete(m, "zone")
				}
			}
			switch key {
			case "conditions", "endpoints", "addresses", "notReadyAddresses", "finalizers", "taints", "tolerations":
				slices.SortStableFunc(v, func(a, b any) int { return strings.Compare(textOf(a, names), textOf(b, names)) })
			}
		}
	}
}

func textOf(v any, names *strings.Replacer) string {
	text, err := json.Marshal(v)
	if err != nil {
		return ""
	}
	return same(string(text), names)
}

// eventOf returns what an event says of whom.
func eventOf(o *unstructured.Unstructured, names *strings.Replacer) string {
	get := func(fields ...string) string {
		text, _, _ := unstructured.NestedString(o.Object, fields...)
		return text
	}
	text := fmt.Sprintf("Event %s %s by %s: %s %s: %s", get("involvedObject", "kind"), get("involvedObject", "name"),
		cmp.Or(get("reportingComponent"), get("source", "component")), get("type"), get("reason"), get("message"))
	text = chosen.ReplaceAllString(same(text, names), "chose one")
	return scaled.ReplaceAllString(text, "$1")
}
