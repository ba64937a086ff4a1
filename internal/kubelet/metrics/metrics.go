// Package metrics has the kubelet's metrics, under the names that dashboards and alerts know. They
// belong to the process: several kubelets in one process share them.
package metrics

import (
	"net/http"
	"sync"
	"time"

	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/legacyregistry"
)

const subsystem = "kubelet"

func histogram(name, help string, buckets []float64) *metrics.Histogram {
	return metrics.NewHistogram(&metrics.HistogramOpts{
		Subsystem: subsystem, Name: name, Help: help, Buckets: buckets, StabilityLevel: metrics.ALPHA,
	})
}

func staticGauge(name, help string) *metrics.GaugeVec {
	return metrics.NewGaugeVec(&metrics.GaugeOpts{Subsystem: subsystem, Name: name, Help: help, StabilityLevel: metrics.ALPHA}, []string{"static"})
}

func volumeGauge(name, help string) *metrics.GaugeVec {
	return metrics.NewGaugeVec(&metrics.GaugeOpts{Subsystem: subsystem, Name: "volume_stats_" + name, Help: help, StabilityLevel: metrics.ALPHA},
		[]string{"namespace", "persistentvolumeclaim"})
}

func gauge(name, help string) *metrics.Gauge {
	return metrics.NewGauge(&metrics.GaugeOpts{Subsystem: subsystem, Name: name, Help: help, StabilityLevel: metrics.ALPHA})
}

func counter(name, help string) *metrics.Counter {
	return metrics.NewCounter(&metrics.CounterOpts{Subsystem: subsystem, Name: name, Help: help, StabilityLevel: metrics.ALPHA})
}

var httpLabels = []string{"method", "path", "server_type", "long_running"}

var (
	podStartBuckets = []float64{0.05, 0.1, 0.25, 0.5, 1, 2, 3, 4, 5, 6, 8, 10, 20, 30, 45, 60, 120, 180, 240, 300, 360, 480, 600, 900, 1200, 1800, 2700, 3600}
	shortBuckets    = metrics.ExponentialBuckets(0.0005, 2, 18)

	// PodStart is the time from the first sight of a pod until it runs.
	PodStart = histogram("pod_start_duration_seconds", "Duration in seconds from kubelet seeing a pod for the first time to the pod starting to run", podStartBuckets)
	// PodStartSLI is the time from the creation of a pod until it runs, without image pulls.
	PodStartSLI = histogram("pod_start_sli_duration_seconds", "Duration in seconds to start a pod, excluding time to pull images and run init containers, measured from pod creation timestamp to when all its containers are reported as started and observed via watch", podStartBuckets)
	// PodStartTotal is the time from the creation of a pod until it runs.
	PodStartTotal = histogram("pod_start_total_duration_seconds", "Duration in seconds to start a pod since creation, including time to pull images and run init containers, measured from pod creation timestamp to when all its containers are reported as started and observed via watch", podStartBuckets)
	// PodWorkerStart is the time from the first sight of a pod until its worker starts.
	PodWorkerStart = histogram("pod_worker_start_duration_seconds", "Duration in seconds from kubelet seeing a pod to starting a worker.", shortBuckets)
	// PodWorker is the duration of a worker's step.
	PodWorker = metrics.NewHistogramVec(&metrics.HistogramOpts{
		Subsystem: subsystem, Name: "pod_worker_duration_seconds", Help: "Duration in seconds to sync a single pod. Broken down by operation type: create, update, or sync",
		Buckets: shortBuckets, StabilityLevel: metrics.ALPHA,
	}, []string{"operation_type"})
	// StatusSync is how long a status waited until it was written.
	StatusSync = histogram("pod_status_sync_duration_seconds", "Duration in seconds to sync a pod status update. Measures time from detection of a change to pod status until the API is successfully updated for that pod, even if multiple intevening changes to pod status occur.", shortBuckets)
	// Relist is how long the slow comparison with the runtime took.
	Relist = histogram("pleg_relist_duration_seconds", "Duration in seconds for relisting pods in PLEG.", shortBuckets)
	// RelistInterval is the time between two relists.
	RelistInterval = histogram("pleg_relist_interval_seconds", "Interval in seconds between relisting in PLEG.", podStartBuckets)
	// LastSeen is when the newest relist was made.
	LastSeen = gauge("pleg_last_seen_seconds", "Timestamp in seconds when PLEG was last seen active.")
	// Operations of the runtime, by type.
	Operations = metrics.NewCounterVec(&metrics.CounterOpts{
		Subsystem: subsystem, Name: "runtime_operations_total", Help: "Cumulative number of runtime operations by operation type.", StabilityLevel: metrics.ALPHA,
	}, []string{"operation_type"})
	// OperationErrors counts the operations that failed.
	OperationErrors = metrics.NewCounterVec(&metrics.CounterOpts{
		Subsystem: subsystem, Name: "runtime_operations_errors_total", Help: "Cumulative number of runtime operation errors by operation type.", StabilityLevel: metrics.ALPHA,
	}, []string{"operation_type"})
	// OperationDuration is how long the operations took.
	OperationDuration = metrics.NewHistogramVec(&metrics.HistogramOpts{
		Subsystem: subsystem, Name: "runtime_operations_duration_seconds", Help: "Duration in seconds of runtime operations. Broken down by operation type.",
		Buckets: metrics.ExponentialBuckets(.005, 2.5, 14), StabilityLevel: metrics.ALPHA,
	}, []string{"operation_type"})
	// RunSandbox is how long starting a sandbox took, by runtime handler.
	RunSandbox = metrics.NewHistogramVec(&metrics.HistogramOpts{
		Subsystem: subsystem, Name: "run_podsandbox_duration_seconds", Help: "Duration in seconds of the run_podsandbox operations. Broken down by RuntimeClass.Handler.",
		Buckets: metrics.DefBuckets, StabilityLevel: metrics.ALPHA,
	}, []string{"runtime_handler"})
	// StartedPods counts attempts to start a sandbox.
	StartedPods = counter("started_pods_total", "Cumulative number of pods started")
	// StartedPodErrors counts sandboxes that failed to start.
	StartedPodErrors = counter("started_pods_errors_total", "Cumulative number of errors when starting pods")
	// StartedContainers counts containers, by type.
	StartedContainers = metrics.NewCounterVec(&metrics.CounterOpts{
		Subsystem: subsystem, Name: "started_containers_total", Help: "Cumulative number of containers started", StabilityLevel: metrics.ALPHA,
	}, []string{"container_type"})
	// TerminatedContainers are instances that ended, by type, exit code and reason.
	TerminatedContainers = metrics.NewCounterVec(&metrics.CounterOpts{
		Subsystem: subsystem, Name: "terminated_containers_total", Help: "Cumulative number of container terminations.", StabilityLevel: metrics.ALPHA,
	}, []string{"container_type", "exit_code", "reason"})
	// StartedUserNamespaces counts attempts to start a sandbox with a user namespace.
	StartedUserNamespaces = counter("started_user_namespaced_pods_total", "Cumulative number of pods with user namespaces started. This metric will only be collected on Linux.")
	// StartedUserNamespaceErrors counts failures of such sandboxes and of their containers.
	StartedUserNamespaceErrors = counter("started_user_namespaced_pods_errors_total", "Cumulative number of errors when starting pods with user namespaces. This metric will only be collected on Linux.")
	// RunningPods counts pods with a sandbox that is ready.
	RunningPods = gauge("running_pods", "Number of pods that have a running pod sandbox")
	// MemoryMin is what the node's guaranteed pods reserve of the memory, in bytes.
	MemoryMin = gauge("memory_qos_node_memory_min_bytes", "Bytes of memory that guaranteed pods request and that the kernel never takes back (memory.min)")
	// MemoryLow is what its burstable pods do.
	MemoryLow = gauge("memory_qos_node_memory_low_bytes", "Bytes of memory that burstable pods request and that the kernel takes back only if there is none elsewhere (memory.low)")
	// RunningContainers counts containers, by state.
	RunningContainers = metrics.NewGaugeVec(&metrics.GaugeOpts{
		Subsystem: subsystem, Name: "running_containers", Help: "Number of containers currently running", StabilityLevel: metrics.ALPHA,
	}, []string{"container_state"})
	// ImagePull is how long pulls took, by the size of the image.
	ImagePull = metrics.NewHistogramVec(&metrics.HistogramOpts{
		Subsystem: subsystem, Name: "image_pull_duration_seconds", Help: "Duration in seconds to pull an image.",
		Buckets: []float64{.1, .5, 1, 5, 10, 20, 30, 60, 120, 180, 240, 300, 360, 480, 600, 900, 1200, 1800, 2700, 3600}, StabilityLevel: metrics.ALPHA,
	}, []string{"image_size_in_bytes"})
	// Evictions counts evictions, by signal.
	Evictions = metrics.NewCounterVec(&metrics.CounterOpts{
		Subsystem: subsystem, Name: "evictions", Help: "Cumulative number of pod evictions by eviction signal", StabilityLevel: metrics.ALPHA,
	}, []string{"eviction_signal"})
	// ImagesCollected counts images that were removed because no pod needs them, by reason.
	ImagesCollected = metrics.NewCounterVec(&metrics.CounterOpts{
		Subsystem: subsystem, Name: "image_garbage_collected_total", StabilityLevel: metrics.ALPHA,
		Help: "Total number of images garbage collected by the kubelet, whether through disk usage or image age.",
	}, []string{"reason"})
	// Rejections counts pods that were not admitted, by reason.
	Rejections = metrics.NewCounterVec(&metrics.CounterOpts{
		Subsystem: subsystem, Name: "admission_rejections_total", Help: "Cumulative number pod admission rejections by the Kubelet.", StabilityLevel: metrics.ALPHA,
	}, []string{"reason"})
	// Preemptions counts pods that were preempted for critical ones.
	Preemptions = metrics.NewCounterVec(&metrics.CounterOpts{
		Subsystem: subsystem, Name: "preemptions", Help: "Cumulative number of pod preemptions by preemption resource", StabilityLevel: metrics.ALPHA,
	}, []string{"preemption_signal"})
	// NodeName is always 1.
	NodeName = metrics.NewGaugeVec(&metrics.GaugeOpts{
		Subsystem: subsystem, Name: "node_name", Help: "The node's name. The count is always 1.", StabilityLevel: metrics.ALPHA,
	}, []string{"node"})

	// HTTPRequests counts requests to the kubelet's servers.
	HTTPRequests = metrics.NewCounterVec(&metrics.CounterOpts{
		Subsystem: subsystem, Name: "http_requests_total", Help: "Number of the http requests received since the server started", StabilityLevel: metrics.ALPHA,
	}, httpLabels)
	// HTTPDuration is how long the requests took.
	HTTPDuration = metrics.NewHistogramVec(&metrics.HistogramOpts{
		Subsystem: subsystem, Name: "http_requests_duration_seconds", Help: "Duration in seconds to serve http requests",
		Buckets: metrics.DefBuckets, StabilityLevel: metrics.ALPHA,
	}, httpLabels)
	// HTTPInflight counts requests without a response yet.
	HTTPInflight = metrics.NewGaugeVec(&metrics.GaugeOpts{
		Subsystem: subsystem, Name: "http_inflight_requests", Help: "Number of the inflight http requests", StabilityLevel: metrics.ALPHA,
	}, httpLabels)
	// PluginErrors counts runs of credential provider plugins that failed.
	PluginErrors = metrics.NewCounterVec(&metrics.CounterOpts{
		Subsystem: subsystem, Name: "credential_provider_plugin_errors_total", Help: "Number of errors from credential provider plugin", StabilityLevel: metrics.ALPHA,
	}, []string{"plugin_name"})
	// PluginDuration is how long the plugins' runs took.
	PluginDuration = metrics.NewHistogramVec(&metrics.HistogramOpts{
		Subsystem: subsystem, Name: "credential_provider_plugin_duration", Help: "Duration of execution in seconds for credential provider plugin",
		Buckets: metrics.DefBuckets, StabilityLevel: metrics.ALPHA,
	}, []string{"plugin_name"})
	// PluginConfig is 1 for the hash of the plugins' configuration.
	PluginConfig = metrics.NewGaugeVec(&metrics.GaugeOpts{
		Subsystem: subsystem, Name: "credential_provider_config_info",
		Help: "Information about the last applied credential provider configuration with hash as label", StabilityLevel: metrics.ALPHA,
	}, []string{"hash"})
	// WebSockets counts streams whose protocol the kubelet translates.
	WebSockets = metrics.NewCounterVec(&metrics.CounterOpts{
		Subsystem: subsystem, Name: "websocket_streaming_requests_total",
		Help:           "Total number of WebSocket streaming requests (exec/attach/portforward) received by the kubelet.",
		StabilityLevel: metrics.ALPHA,
	}, []string{"subresource"})

	// ClientTTL is how long the client certificate is valid.
	ClientTTL = gauge("certificate_manager_client_ttl_seconds", "Gauge of the TTL (time-to-live) of the Kubelet's client certificate. The value is in seconds until certificate expiry (negative if already expired). If client certificate is invalid or unused, the value will be +INF.")
	// ServerTTL is how long the serving certificate is valid.
	ServerTTL = gauge("certificate_manager_server_ttl_seconds", "Gauge of the shortest TTL (time-to-live) of the Kubelet's serving certificate. The value is in seconds until certificate expiry (negative if already expired). If serving certificate is invalid or unused, the value will be +INF.")
	// ClientRenewErrors counts failed attempts to get a client certificate.
	ClientRenewErrors = counter("certificate_manager_client_expiration_renew_errors", "Counter of certificate renewal errors.")
	// ServerRenewErrors counts failed attempts to get a serving certificate.
	ServerRenewErrors = counter("server_expiration_renew_errors", "Counter of certificate renewal errors.")
	// ServerRotation is how long a serving certificate had been in use when it was replaced.
	ServerRotation = histogram("certificate_manager_server_rotation_seconds", "Histogram of the number of seconds the previous certificate lived before being rotated.",
		[]float64{60, 3600, 14400, 86400, 604800, 2592000, 7776000, 15552000, 31104000, 124416000})

	// ShutdownStart is when the last graceful shutdown began.
	ShutdownStart = gauge("graceful_shutdown_start_time_seconds", "Last graceful shutdown start time since unix epoch in seconds")
	// ShutdownEnd is 0 while the shutdown is in progress.
	ShutdownEnd = gauge("graceful_shutdown_end_time_seconds", "Last graceful shutdown start time since unix epoch in seconds")

	// RunSandboxErrors counts sandboxes that failed to start, by handler.
	RunSandboxErrors = metrics.NewCounterVec(&metrics.CounterOpts{
		Subsystem: subsystem, Name: "run_podsandbox_errors_total", StabilityLevel: metrics.ALPHA,
		Help: "Cumulative number of the run_podsandbox operation errors by RuntimeClass.Handler.",
	}, []string{"runtime_handler"})
	// StartedContainerErrors counts containers that failed to start.
	StartedContainerErrors = metrics.NewCounterVec(&metrics.CounterOpts{
		Subsystem: subsystem, Name: "started_containers_errors_total", StabilityLevel: metrics.ALPHA,
		Help: "Cumulative number of errors when starting containers",
	}, []string{"container_type", "code"})
	// DesiredPods counts the pods that a source wants.
	DesiredPods = staticGauge("desired_pods", "The number of pods the kubelet is being instructed to run. static is true if the pod is not from the apiserver.")
	// ActivePods counts the pods that hold resources.
	ActivePods = staticGauge("active_pods", "The number of pods the kubelet considers active and which are being considered when admitting new pods. static is true if the pod is not from the apiserver.")
	// MirrorPods counts the objects that represent static pods at the API server.
	MirrorPods = gauge("mirror_pods", "The number of mirror pods the kubelet will try to create (one per admitted static pod)")
	// CgroupVersion of the host.
	CgroupVersion = gauge("cgroup_version", "cgroup version on the hosts.")
	// Volumes has the volume statistics of claims, by the suffix of the metric's name.
	Volumes = map[string]*metrics.GaugeVec{
		"capacity_bytes":  volumeGauge("capacity_bytes", "Capacity in bytes of the volume"),
		"available_bytes": volumeGauge("available_bytes", "Number of available bytes in the volume"),
		"used_bytes":      volumeGauge("used_bytes", "Number of used bytes in the volume"),
		"inodes":          volumeGauge("inodes", "Maximum number of inodes in the volume"),
		"inodes_free":     volumeGauge("inodes_free", "Number of free inodes in the volume"),
		"inodes_used":     volumeGauge("inodes_used", "Number of used inodes in the volume"),
	}
	// CSIStorageHealth has what is wrong behind the node's CSI drivers.
	CSIStorageHealth = metrics.NewGaugeVec(&metrics.GaugeOpts{
		Name: "csi_node_storage_health_status", StabilityLevel: metrics.ALPHA,
		Help: "CSI node storage backend health conditions currently reported (1 = present).",
	}, []string{"driver_name", "status", "reason"})

	// Probes has a path of its own, /metrics/probes.
	Probes = metrics.NewCounterVec(&metrics.CounterOpts{
		Subsystem: "prober", Name: "probe_total", Help: "Cumulative number of a liveness, readiness or startup probe for a container by result.",
		StabilityLevel: metrics.BETA,
	}, []string{"probe_type", "result", "container", "pod", "namespace", "pod_uid"})
	// ProbeDuration is on the same path.
	ProbeDuration = metrics.NewHistogramVec(&metrics.HistogramOpts{
		Subsystem: "prober", Name: "probe_duration_seconds", Help: "Duration in seconds for a probe response.",
		StabilityLevel: metrics.ALPHA,
	}, []string{"probe_type", "container", "pod", "namespace"})
	probeRegistry = metrics.NewKubeRegistry()
)

var register = sync.OnceFunc(func() {
	legacyregistry.MustRegister(PodStart, PodStartSLI, PodStartTotal, PodWorkerStart, PodWorker, StatusSync, Relist, RelistInterval,
		LastSeen, Operations, OperationErrors, OperationDuration, RunSandbox, StartedPods, StartedPodErrors, StartedContainers,
		TerminatedContainers, StartedUserNamespaces, StartedUserNamespaceErrors,
		RunningPods, MemoryMin, MemoryLow, RunningContainers, ImagePull, ImagesCollected, Evictions, Preemptions, Rejections, NodeName,
		HTTPRequests, HTTPDuration, HTTPInflight, WebSockets, PluginErrors, PluginDuration, PluginConfig,
		ClientTTL, ServerTTL, ClientRenewErrors, ServerRenewErrors, ServerRotation, ShutdownStart, ShutdownEnd,
		RunSandboxErrors, StartedContainerErrors, DesiredPods, ActivePods, MirrorPods, CgroupVersion, CSIStorageHealth)
	for _, v := range Volumes {
		legacyregistry.MustRegister(v)
	}
	legacyregistry.MustRegister(plugins()...)
	legacyregistry.MustRegister(alignments()...)
	probeRegistry.MustRegister(Probes, ProbeDuration)
	if err := metrics.RegisterProcessStartTime(probeRegistry.Register); err != nil {
		panic(err) // registered twice: the first test would fail
	}
})

// Register registers all metrics, once.
func Register() { register() }

// ProbesHandler serves /metrics/probes.
func ProbesHandler() http.Handler {
	return metrics.HandlerFor(probeRegistry, metrics.HandlerOpts{ErrorHandling: metrics.ContinueOnError})
}

// SizeBucket returns the label for an image's size.
func SizeBucket(size uint64) string {
	const mb, gb = 1 << 20, 1 << 30
	for _, b := range []struct {
		below uint64
		label string
	}{
		{10 * mb, "0-10MB"}, {100 * mb, "10MB-100MB"}, {500 * mb, "100MB-500MB"}, {gb, "500MB-1GB"}, {5 * gb, "1GB-5GB"},
		{10 * gb, "5GB-10GB"}, {20 * gb, "10GB-20GB"}, {30 * gb, "20GB-30GB"}, {40 * gb, "30GB-40GB"}, {60 * gb, "40GB-60GB"},
		{100 * gb, "60GB-100GB"},
	} {
		if size < b.below {
			return b.label
		}
	}
	return "GT100GB"
}

// Operation measures one call of the runtime.
func Operation(name string, began time.Time, err error) {
	Operations.WithLabelValues(name).Inc()
	OperationDuration.WithLabelValues(name).Observe(time.Since(began).Seconds())
	if err != nil {
		OperationErrors.WithLabelValues(name).Inc()
	}
}
