package podplan

// Reasons as Kubernetes writes them into pod statuses; dashboards and people look
// for these words.
const (
	ReasonContainerCreating      = "ContainerCreating"
	ReasonPodInitializing        = "PodInitializing"
	ReasonCrashLoopBackOff       = "CrashLoopBackOff"
	ReasonErrImagePull           = "ErrImagePull"
	ReasonImagePullBackOff       = "ImagePullBackOff"
	ReasonErrImageNeverPull      = "ErrImageNeverPull"
	ReasonInvalidImageName       = "InvalidImageName"
	ReasonImageInspectError      = "ImageInspectError"
	ReasonRegistryUnavailable    = "RegistryUnavailable"
	ReasonCreateConfigError      = "CreateContainerConfigError"
	ReasonCreateContainerError   = "CreateContainerError"
	ReasonRunContainerError      = "RunContainerError"
	ReasonPostStartHook          = "PostStartHookError"
	ReasonCompleted              = "Completed"
	ReasonError                  = "Error"
	ReasonStartError             = "StartError"
	ReasonContainerStatusUnknown = "ContainerStatusUnknown"
	ReasonDeadlineExceeded       = "DeadlineExceeded"

	// ReasonEvicted is that of a pod which the node could not keep, or not take.
	ReasonEvicted = "Evicted"

	// ReasonSignatureValidationFailed is a runtime's, of an image that it does not trust.
	ReasonSignatureValidationFailed = "SignatureValidationFailed"

	// ReasonNodeAffinity refuses a pod whose selector or affinity the node does not fit,
	// ReasonOutOf and a resource's name one for which there is not enough.
	ReasonNodeAffinity = "NodeAffinity"
	ReasonOutOf        = "OutOf"

	reasonFeature = "PodFeatureUnsupported"

	messageDeadline = "Pod was active on the node longer than the specified deadline"
	messageUnknown  = "The container could not be located when the pod was terminated"
	messageLost     = "The container could not be located when the pod was deleted.  The container used to be Running"

	reasonPodCompleted   = "PodCompleted"
	reasonPodFailed      = "PodFailed"
	reasonNotReady       = "ContainersNotReady"
	reasonNotInitialized = "ContainersNotInitialized"
	reasonGatesNotReady  = "ReadinessGatesNotReady"
)
