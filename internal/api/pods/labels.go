package pods

// Labels and annotations that a kubelet puts on sandboxes and containers, for crictl, log
// collectors and monitors.
const (
	LabelPodName       = "io.kubernetes.pod.name"
	LabelPodNamespace  = "io.kubernetes.pod.namespace"
	LabelPodUID        = "io.kubernetes.pod.uid"
	LabelContainerName = "io.kubernetes.container.name"

	AnnotationHash           = "io.kubernetes.container.hash"
	AnnotationRestartCount   = "io.kubernetes.container.restartCount"
	AnnotationMessagePath    = "io.kubernetes.container.terminationMessagePath"
	AnnotationMessagePolicy  = "io.kubernetes.container.terminationMessagePolicy"
	AnnotationPorts          = "io.kubernetes.container.ports"
	AnnotationPreStop        = "io.kubernetes.container.preStopHandler"
	AnnotationPodGrace       = "io.kubernetes.pod.terminationGracePeriod"
	AnnotationPodDeleteGrace = "io.kubernetes.pod.deletionGracePeriod"
)
