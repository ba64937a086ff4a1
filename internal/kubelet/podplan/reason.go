package podplan

// Reasons as Kubernetes writes them into pod statuses. Dashboards and people look for these words.
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

	// ReasonEvicted is the reason for a pod that the node could not keep, or not admit.
	ReasonEvicted = "Evicted"

	// ReasonSignatureValidationFailed comes from a runtime that does not trust an image.
	ReasonSignatureValidationFailed = "SignatureValidationFailed"

	// ReasonPrepareClaims is why a pod has no sandbox whose resource claims could not be prepared; the event about it, too.
	ReasonPrepareClaims = "FailedPrepareDynamicResources"

	// ReasonNodeAffinity is for a pod whose selector or affinity does not match the node;
	// ReasonOutOf plus a resource's name, for a pod that needs more of it than there is.
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
