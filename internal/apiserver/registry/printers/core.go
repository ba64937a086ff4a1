package printers

import (
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"wherry.dev/internal/apiserver/registry"
)

// Namespaces is the table of namespaces.
var Namespaces = registry.Table[*corev1.Namespace]{
	Columns: []metav1.TableColumnDefinition{nameColumn, column("Status", "The status of the namespace"), ageColumn},
	Cells: func(n *corev1.Namespace, now time.Time) []any {
		return []any{n.Name, string(n.Status.Phase), age(n, now)}
	},
}

// Nodes is the table of nodes.
var Nodes = registry.Table[*corev1.Node]{
	Columns: []metav1.TableColumnDefinition{
		nameColumn,
		column("Status", "The status of the node"),
		column("Roles", "The roles of the node"),
		ageColumn,
		column("Version", corev1.NodeSystemInfo{}.SwaggerDoc()["kubeletVersion"]),
		wide("Internal-IP", corev1.NodeStatus{}.SwaggerDoc()["addresses"]),
		wide("External-IP", corev1.NodeStatus{}.SwaggerDoc()["addresses"]),
		wide("OS-Image", corev1.NodeSystemInfo{}.SwaggerDoc()["osImage"]),
		wide("Kernel-Version", corev1.NodeSystemInfo{}.SwaggerDoc()["kernelVersion"]),
		wide("Container-Runtime", corev1.NodeSystemInfo{}.SwaggerDoc()["containerRuntimeVersion"]),
	},
	Cells: func(n *corev1.Node, now time.Time) []any {
		info := n.Status.NodeInfo
		kernel := orUnknown(info.KernelVersion)
		if info.Architecture != "" {
			kernel += " (" + info.Architecture + ")"
		}
		return []any{
			n.Name, nodeStatus(n), nodeRoles(n), age(n, now), info.KubeletVersion,
			nodeAddress(n, corev1.NodeInternalIP), nodeAddress(n, corev1.NodeExternalIP),
			orUnknown(info.OSImage), kernel, orUnknown(info.ContainerRuntimeVersion),
		}
	},
}

func orUnknown(s string) string {
	if s == "" {
		return unknown
	}
	return s
}

func nodeStatus(n *corev1.Node) string {
	status := "Unknown"
	for _, c := range n.Status.Conditions {
		if c.Type != corev1.NodeReady {
			continue
		}
		if status = "NotReady"; c.Status == corev1.ConditionTrue {
			status = "Ready"
		}
	}
	if n.Spec.Unschedulable {
		status += ",SchedulingDisabled"
	}
	return status
}

// nodeRoles returns the roles from both kinds of labels that name them.
func nodeRoles(n *corev1.Node) string {
	roles := map[string]bool{}
	for k, v := range n.Labels {
		if role, ok := strings.CutPrefix(k, "node-role.kubernetes.io/"); ok && role != "" {
			roles[role] = true
		}
		if k == "kubernetes.io/role" && v != "" {
			roles[v] = true
		}
	}
	return orNone(strings.Join(slices.Sorted(maps.Keys(roles)), ","))
}

func nodeAddress(n *corev1.Node, kind corev1.NodeAddressType) string {
	for _, a := range n.Status.Addresses {
		if a.Type == kind {
			return a.Address
		}
	}
	return none
}

// Events is the table of events.
var Events = registry.Table[*corev1.Event]{
	Columns: []metav1.TableColumnDefinition{
		column("Last Seen", corev1.Event{}.SwaggerDoc()["lastTimestamp"]),
		column("Type", corev1.Event{}.SwaggerDoc()["type"]),
		column("Reason", corev1.Event{}.SwaggerDoc()["reason"]),
		column("Object", corev1.Event{}.SwaggerDoc()["involvedObject"]),
		wide("Subobject", corev1.ObjectReference{}.SwaggerDoc()["fieldPath"]),
		wide("Source", corev1.Event{}.SwaggerDoc()["source"]),
		column("Message", corev1.Event{}.SwaggerDoc()["message"]),
		wide("First Seen", corev1.Event{}.SwaggerDoc()["firstTimestamp"]),
		wide("Count", corev1.Event{}.SwaggerDoc()["count"]),
		registry.Column("Name", "string", "name", metav1.ObjectMeta{}.SwaggerDoc()["name"], true),
	},
	Cells: func(e *corev1.Event, now time.Time) []any {
		first, last, count := e.FirstTimestamp.Time, e.LastTimestamp.Time, int64(e.Count)
		if first.IsZero() {
			first = e.EventTime.Time
		}
		if last.IsZero() {
			last = first
		}
		if e.Series != nil {
			last, count = e.Series.LastObservedTime.Time, int64(e.Series.Count)
		} else if count == 0 {
			count = 1
		}
		object := strings.ToLower(e.InvolvedObject.Kind)
		if e.InvolvedObject.Name != "" {
			object += "/" + e.InvolvedObject.Name
		}
		return []any{
			since(last, now), e.Type, e.Reason, object, e.InvolvedObject.FieldPath, eventSource(e),
			strings.TrimSpace(e.Message), since(first, now), count, e.Name,
		}
	},
}

func eventSource(e *corev1.Event) string {
	component, instance := e.Source.Component, e.Source.Host
	if component == "" {
		component = e.ReportingController
	}
	if instance == "" {
		instance = e.ReportingInstance
	}
	if instance == "" {
		return component
	}
	return component + ", " + instance
}

// ConfigMaps is the table of config maps.
var ConfigMaps = registry.Table[*corev1.ConfigMap]{
	Columns: []metav1.TableColumnDefinition{nameColumn, column("Data", corev1.ConfigMap{}.SwaggerDoc()["data"]), ageColumn},
	Cells: func(c *corev1.ConfigMap, now time.Time) []any {
		return []any{c.Name, int64(len(c.Data) + len(c.BinaryData)), age(c, now)}
	},
}

// Secrets is the table of secrets.
var Secrets = registry.Table[*corev1.Secret]{
	Columns: []metav1.TableColumnDefinition{
		nameColumn, column("Type", corev1.Secret{}.SwaggerDoc()["type"]), column("Data", corev1.Secret{}.SwaggerDoc()["data"]), ageColumn,
	},
	Cells: func(s *corev1.Secret, now time.Time) []any {
		return []any{s.Name, string(s.Type), int64(len(s.Data)), age(s, now)}
	},
}

// ServiceAccounts is the table of service accounts.
var ServiceAccounts = registry.Table[*corev1.ServiceAccount]{
	Columns: []metav1.TableColumnDefinition{nameColumn, ageColumn},
	Cells:   func(s *corev1.ServiceAccount, now time.Time) []any { return []any{s.Name, age(s, now)} },
}

// ResourceQuotas is the table of resource quotas.
var ResourceQuotas = registry.Table[*corev1.ResourceQuota]{
	Columns: []metav1.TableColumnDefinition{
		nameColumn,
		column("Request", "Request represents a minimum amount of cpu/memory that a container may consume."),
		column("Limit", "Limits control the maximum amount of cpu/memory that a container may use independent of contention on the node."),
		ageColumn,
	},
	Cells: func(q *corev1.ResourceQuota, now time.Time) []any {
		var requests, limits []string
		for _, name := range slices.Sorted(maps.Keys(q.Status.Hard)) {
			used, hard := q.Status.Used[name], q.Status.Hard[name]
			text := string(name) + ": " + used.String() + "/" + hard.String()
			if strings.HasPrefix(string(name), "limits.") {
				limits = append(limits, text)
				continue
			}
			requests = append(requests, text)
		}
		return []any{q.Name, strings.Join(requests, ", "), strings.Join(limits, ", "), age(q, now)}
	},
}

// ComponentStatuses is the table of the parts of the control plane.
var ComponentStatuses = registry.Table[*corev1.ComponentStatus]{
	Columns: []metav1.TableColumnDefinition{
		nameColumn,
		column("Status", "Status of the component conditions"),
		column("Message", "Message of the component conditions"),
		column("Error", "Error of the component conditions"),
	},
	Cells: func(c *corev1.ComponentStatus, _ time.Time) []any {
		for _, cond := range c.Conditions {
			if cond.Type != corev1.ComponentHealthy {
				continue
			}
			status := "Unhealthy"
			if cond.Status == corev1.ConditionTrue {
				status = "Healthy"
			}
			return []any{c.Name, status, cond.Message, cond.Error}
		}
		return []any{c.Name, "Unknown", "", ""}
	},
}
