package metrics

import "k8s.io/component-base/metrics"

// Metrics of CPUs, memory and their alignment with NUMA nodes, with upstream's names.
var (
	// CPUPinnings counts pods for which CPUs of their own were sought.
	CPUPinnings = pinning("cpu_manager_pinning_requests_total", "Number of pods whose containers were to have CPUs of their own.")
	// CPUPinningErrors counts those that got none.
	CPUPinningErrors = pinning("cpu_manager_pinning_errors_total", "Number of pods whose containers could not have CPUs of their own.")
	// MemoryPinnings counts pods for which memory of certain NUMA nodes was sought.
	MemoryPinnings = pinning("memory_manager_pinning_requests_total",
		"Number of pods whose containers were to have memory of certain NUMA nodes.")
	// MemoryPinningErrors counts those that got none.
	MemoryPinningErrors = pinning("memory_manager_pinning_errors_total",
		"Number of pods whose containers could not have memory of certain NUMA nodes.")
	// TopologyAdmissions counts pods whose resources were to be aligned.
	TopologyAdmissions = pinning("topology_manager_admission_requests_total", "Number of pods whose resources were to be aligned.")
	// TopologyAdmissionErrors counts those whose resources could not be had.
	TopologyAdmissionErrors = pinning("topology_manager_admission_errors_total",
		"Number of pods whose resources could not be aligned, or not be had.")
	// TopologyAdmissionDuration is how long that took.
	TopologyAdmissionDuration = metrics.NewHistogram(&metrics.HistogramOpts{
		Subsystem: subsystem, Name: "topology_manager_admission_duration_ms", Help: "Time to align the resources of a pod, in milliseconds.",
		Buckets: metrics.ExponentialBuckets(.05, 2, 15), StabilityLevel: metrics.ALPHA,
	})
	// Alignments counts pods, or containers, all of whose resources are within one boundary.
	Alignments = alignment("container_aligned_compute_resources_count", "Cumulative number of aligned compute resources allocated, by boundary.")
	// AlignmentFailures counts those that were refused for want of that.
	AlignmentFailures = alignment("container_aligned_compute_resources_failure_count",
		"Cumulative number of failures to allocate aligned compute resources, by boundary.")
)

func pinning(name, help string) *metrics.Counter {
	return metrics.NewCounter(&metrics.CounterOpts{Subsystem: subsystem, Name: name, Help: help, StabilityLevel: metrics.ALPHA})
}

func alignment(name, help string) *metrics.CounterVec {
	return metrics.NewCounterVec(&metrics.CounterOpts{Subsystem: subsystem, Name: name, Help: help, StabilityLevel: metrics.ALPHA},
		[]string{"scope", "boundary"})
}

// BeginAlignments lets those of NUMA nodes begin at zero: a counter that is not there before its first failure tells no rate.
func BeginAlignments() {
	for _, c := range []*metrics.CounterVec{Alignments, AlignmentFailures} {
		for _, scope := range []string{"container", "pod"} {
			c.WithLabelValues(scope, "numa_node").Add(0)
		}
	}
}

// alignments are the metrics of this file.
func alignments() []metrics.Registerable {
	return []metrics.Registerable{
		CPUPinnings, CPUPinningErrors, MemoryPinnings, MemoryPinningErrors,
		TopologyAdmissions, TopologyAdmissionErrors, TopologyAdmissionDuration, Alignments, AlignmentFailures,
	}
}
