package report

import (
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// SchedulingKind is the kind of a Scheduling report, and SchedulingPath where it is served, followed by the pod's
// UID: by the API server of a node that runs the scheduler in its process, and by a scheduler that runs alone.
const (
	SchedulingKind = "SchedulingReport"
	SchedulingPath = "/debug/scheduler/pods/"
)

// NotScheduling is what the scheduler answers, with 404, if it does not know the pod.
const NotScheduling = "the scheduler does not know the pod"

// Scheduling is what a scheduler reports about one pod.
type Scheduling struct {
	metav1.TypeMeta `json:",inline"`

	UID types.UID `json:"uid"`
	At  time.Time `json:"at"`
	// Queue is where the pod waits; nil if it has a node.
	Queue *Queue `json:"queue,omitempty"`
	// Nodes says why the pod does not run on them, groups of nodes with the same reason together, the largest
	// group first.
	Nodes []NodeGroup `json:"nodes,omitempty"`
	// Choice is how the pod's node was chosen; nil if that was too long ago.
	Choice *Choice `json:"choice,omitempty"`
}

// Queue is where a pod waits to be scheduled.
type Queue struct {
	// Place is active, backoff, unschedulable, gated or scheduling.
	Place string `json:"place"`
	// Gate is why the scheduler does not look for a node, for a pod that is gated.
	Gate     string     `json:"gate,omitempty"`
	Since    *time.Time `json:"since,omitempty"`
	Attempts int        `json:"attempts"`
	// Retry is when the pod is tried again at the latest.
	Retry *time.Time `json:"retry,omitempty"`
	// WaitsFor has what has to happen before, by the plugin that rejected the pod.
	WaitsFor []Awaited `json:"waitsFor,omitempty"`
	// Nominated is the node on which room is being made for the pod.
	Nominated string `json:"nominated,omitempty"`
}

// Awaited are the events that a plugin waits for, as Kind/Action.
type Awaited struct {
	Plugin string   `json:"plugin"`
	Events []string `json:"events"`
}

// NodeGroup is nodes that a pod cannot run on for the same reason.
type NodeGroup struct {
	// Plugin is the one that rejected them; empty if the pod fits.
	Plugin  string   `json:"plugin,omitempty"`
	Reasons []string `json:"reasons,omitempty"`
	// Never means that the end of other pods would not help.
	Never bool `json:"never,omitempty"`
	Count int  `json:"count"`
	// Names has some of the nodes.
	Names []string `json:"names"`
	// Fixes has what would make the pod fit on the node that lacks least, each of them enough if no other plugin
	// objects.
	Fixes []string `json:"fixes,omitempty"`
}

// Choice is how a node was chosen.
type Choice struct {
	At   time.Time `json:"at"`
	Node string    `json:"node"`
	// Nodes is how many there were, and Feasible how many of them were found on which the pod could run.
	Nodes    int `json:"nodes"`
	Feasible int `json:"feasible"`
	// Best has the nodes with the highest scores, the chosen one first.
	Best []NodeScore `json:"best,omitempty"`
}

// NodeScore is a node's score.
type NodeScore struct {
	Node  string        `json:"node"`
	Total int64         `json:"total"`
	Parts []PluginScore `json:"parts,omitempty"`
}

// PluginScore is what a plugin added: its score of up to 100, times its weight.
type PluginScore struct {
	Plugin string `json:"plugin"`
	Score  int64  `json:"score"`
	Weight int64  `json:"weight"`
}
