package metrics

import "k8s.io/component-base/metrics"

var (
	// DevicePlugins counts registrations of device plugins, by resource.
	DevicePlugins = metrics.NewCounterVec(&metrics.CounterOpts{
		Subsystem: subsystem, Name: "device_plugin_registration_total", Help: "Cumulative number of device plugin registrations. Broken down by resource name.",
		StabilityLevel: metrics.ALPHA,
	}, []string{"resource_name"})
	// DeviceAllocation is how long a device plugin took to say what a container needs.
	DeviceAllocation = metrics.NewHistogramVec(&metrics.HistogramOpts{
		Subsystem: subsystem, Name: "device_plugin_alloc_duration_seconds", Help: "Duration in seconds to serve a device plugin Allocation request. Broken down by resource name.",
		Buckets: metrics.DefBuckets, StabilityLevel: metrics.ALPHA,
	}, []string{"resource_name"})

	// DRAOperations is how long it took to prepare all resource claims of a pod, or to take that back.
	DRAOperations = metrics.NewHistogramVec(&metrics.HistogramOpts{
		Subsystem: "dra", Name: "operations_duration_seconds",
		Help:    "Time to prepare all ResourceClaims of a pod, or to take that back, in seconds.",
		Buckets: metrics.ExponentialBucketsRange(.1, 40, 15), StabilityLevel: metrics.ALPHA,
	}, []string{"operation_name", "is_error"})
	// DRACalls is how long drivers took for calls.
	DRACalls = metrics.NewHistogramVec(&metrics.HistogramOpts{
		Subsystem: "dra", Name: "grpc_operations_duration_seconds", Help: "Duration in seconds of the DRA gRPC operations.",
		Buckets: metrics.ExponentialBucketsRange(.1, 40, 15), StabilityLevel: metrics.ALPHA,
	}, []string{"driver_name", "method_name", "grpc_status_code"})

	podResources       = podResourcesCounter("requests_total", "Cumulative number of requests to the PodResource endpoint. Broken down by server api version.")
	podResourcesByCall = map[string]*metrics.CounterVec{
		"list":            podResourcesCounter("requests_list", "Number of requests to the PodResource List endpoint. Broken down by server api version."),
		"get":             podResourcesCounter("requests_get", "Number of requests to the PodResource Get endpoint. Broken down by server api version."),
		"get_allocatable": podResourcesCounter("requests_get_allocatable", "Number of requests to the PodResource GetAllocatableResources endpoint. Broken down by server api version."),
	}
	podResourcesErrors = podResourcesCounter("errors_get", "Number of requests to the PodResource Get endpoint which returned error. Broken down by server api version.")
)

func podResourcesCounter(name, help string) *metrics.CounterVec {
	return metrics.NewCounterVec(&metrics.CounterOpts{
		Subsystem: subsystem, Name: "pod_resources_endpoint_" + name, Help: help, StabilityLevel: metrics.ALPHA,
	}, []string{"server_api_version"})
}

// plugins are the metrics of this file.
func plugins() []metrics.Registerable {
	out := []metrics.Registerable{DevicePlugins, DeviceAllocation, DRAOperations, DRACalls, podResources, podResourcesErrors}
	for _, c := range podResourcesByCall {
		out = append(out, c)
	}
	return out
}

// PodResources counts a request for what pods have: list, get or get_allocatable.
func PodResources(call string) {
	podResources.WithLabelValues("v1").Inc()
	podResourcesByCall[call].WithLabelValues("v1").Inc()
}

// PodResourcesAlpha counts a request to list in v1alpha1.
func PodResourcesAlpha() { podResources.WithLabelValues("v1alpha1").Inc() }

// PodResourcesFailed counts a request to get that failed.
func PodResourcesFailed() { podResourcesErrors.WithLabelValues("v1").Inc() }
