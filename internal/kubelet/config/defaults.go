package config

import (
	"maps"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	logsapi "k8s.io/component-base/logs/api/v1"
	kubeletconfig "k8s.io/kubelet/config/v1beta1"
)

// Default returns the configuration of upstream's kubelet without flags and config file, with two
// exceptions: access to its server is closed (upstream's flags alone leave it open), and cgroup v1
// is accepted with a warning.
func Default() Config {
	c := Config{RootDir: "/var/lib/kubelet", ContainerLogsDir: "/var/log/containers", RegisterSchedulable: true}
	setDefaults(&c.KubeletConfiguration)
	return c
}

// defaultEviction is what pods may not use up, unless configured otherwise.
var defaultEviction = map[string]string{
	"memory.available": "100Mi", "nodefs.available": "10%", "nodefs.inodesFree": "5%",
	"imagefs.available": "15%", "imagefs.inodesFree": "5%",
}

// defaultQPS is upstream's rate limit for requests to the API server.
const defaultQPS = 50

// defaultLogInterval is how often the sizes of containers' logs are checked.
var defaultLogInterval = metav1.Duration{Duration: 10 * time.Second}

// def sets a field that has its zero value.
func def[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

// defPtr sets a field that was left out.
func defPtr[T any](field **T, value T) {
	if *field == nil {
		*field = &value
	}
}

func defTime(field *metav1.Duration, value time.Duration) { def(&field.Duration, value) }

// setDefaults fills in what a KubeletConfiguration leaves out.
func setDefaults(k *kubeletconfig.KubeletConfiguration) {
	k.Kind, k.APIVersion = "KubeletConfiguration", kubeletconfig.SchemeGroupVersion.String()
	defaultServer(k)
	defaultNode(k)
	defaultPods(k)
	defaultManagers(k)
	logsapi.SetRecommendedLoggingConfiguration(&k.Logging)
}

func defaultServer(k *kubeletconfig.KubeletConfiguration) {
	def(&k.Address, "0.0.0.0")
	def(&k.Port, 10250)
	defPtr(&k.HealthzPort, 10248)
	def(&k.HealthzBindAddress, "127.0.0.1")
	for _, on := range []**bool{
		&k.EnableServer, &k.EnableDebuggingHandlers, &k.EnableProfilingHandler, &k.EnableDebugFlagsHandler,
		&k.EnableSystemLogHandler, &k.Authentication.Webhook.Enabled,
	} {
		defPtr(on, true)
	}
	defPtr(&k.EnableSystemLogQuery, false)
	defPtr(&k.Authentication.Anonymous.Enabled, false)
	defTime(&k.Authentication.Webhook.CacheTTL, 2*time.Minute)
	def(&k.Authorization.Mode, kubeletconfig.KubeletAuthorizationModeWebhook)
	defTime(&k.Authorization.Webhook.CacheAuthorizedTTL, 5*time.Minute)
	defTime(&k.Authorization.Webhook.CacheUnauthorizedTTL, 30*time.Second)
	defTime(&k.StreamingConnectionIdleTimeout, 4*time.Hour)
}

func defaultNode(k *kubeletconfig.KubeletConfiguration) {
	if k.NodeStatusReportFrequency.Duration == 0 {
		k.NodeStatusReportFrequency.Duration = 5 * time.Minute
		if k.NodeStatusUpdateFrequency.Duration != 0 {
			k.NodeStatusReportFrequency = k.NodeStatusUpdateFrequency
		}
	}
	defTime(&k.NodeStatusUpdateFrequency, 10*time.Second)
	def(&k.NodeLeaseDurationSeconds, 40)
	defPtr(&k.NodeStatusMaxImages, 50)
	defPtr(&k.RegisterNode, true)
	def(&k.MaxPods, 110)
	defPtr(&k.EventRecordQPS, 50)
	def(&k.EventBurst, 100)
	defPtr(&k.KubeAPIQPS, defaultQPS)
	def(&k.KubeAPIBurst, 100)
	def(&k.ContentType, "application/vnd.kubernetes.protobuf")
	defPtr(&k.OOMScoreAdj, -999)
	def(&k.MaxOpenFiles, 1000000)
	defPtr(&k.FailSwapOn, true)
	defPtr(&k.FailCgroupV1, false)
	defPtr(&k.LocalStorageCapacityIsolation, true)
	defPtr(&k.EnableControllerAttachDetach, true)
	def(&k.VolumePluginDir, "/usr/libexec/kubernetes/kubelet-plugins/volume/exec/")
	defTime(&k.VolumeStatsAggPeriod, time.Minute)
	if k.EnforceNodeAllocatable == nil {
		k.EnforceNodeAllocatable = []string{"pods"}
	}
	defPtr(&k.MergeDefaultEvictionSettings, false)
	if k.EvictionHard == nil || *k.MergeDefaultEvictionSettings {
		merged := map[string]string{}
		maps.Copy(merged, defaultEviction)
		maps.Copy(merged, k.EvictionHard)
		k.EvictionHard = merged
	}
	defTime(&k.EvictionPressureTransitionPeriod, 5*time.Minute)
}

func defaultPods(k *kubeletconfig.KubeletConfiguration) {
	def(&k.ContainerRuntimeEndpoint, "unix:///run/containerd/containerd.sock")
	defTime(&k.RuntimeRequestTimeout, 2*time.Minute)
	def(&k.PodLogsDir, "/var/log/pods")
	defTime(&k.SyncFrequency, time.Minute)
	defTime(&k.FileCheckFrequency, 20*time.Second)
	defTime(&k.HTTPCheckFrequency, 20*time.Second)
	if k.PodPidsLimit == nil || *k.PodPidsLimit < 0 {
		k.PodPidsLimit = new(int64(-1))
	}
	defPtr(&k.ResolverConfig, "/etc/resolv.conf")
	defPtr(&k.CPUCFSQuota, true)
	defPtr(&k.CPUCFSQuotaPeriod, metav1.Duration{Duration: 100 * time.Millisecond})
	defPtr(&k.SeccompDefault, false)
	defPtr(&k.CgroupsPerQOS, true)
	def(&k.CgroupDriver, "cgroupfs")
	def(&k.ContainerLogMaxSize, "10Mi")
	defPtr(&k.ContainerLogMaxFiles, 5)
	defPtr(&k.ContainerLogMaxWorkers, 1)
	defPtr(&k.ContainerLogMonitorInterval, defaultLogInterval)
	def(&k.ConfigMapAndSecretChangeDetectionStrategy, kubeletconfig.WatchChangeDetectionStrategy)
	defPtr(&k.CrashLoopBackOff.MaxContainerRestartPeriod, metav1.Duration{Duration: 5 * time.Minute})
	defPtr(&k.RegistryPullQPS, 5)
	def(&k.RegistryBurst, 10)
	// Upstream pulls one image at a time unless told otherwise; here no pull waits for another.
	defPtr(&k.SerializeImagePulls, false)
	def(&k.ImagePullCredentialsVerificationPolicy, kubeletconfig.NeverVerifyPreloadedImages)
	defTime(&k.ImageMinimumGCAge, 2*time.Minute)
	defPtr(&k.ImageGCHighThresholdPercent, 85)
	defPtr(&k.ImageGCLowThresholdPercent, 80)
}

func defaultManagers(k *kubeletconfig.KubeletConfiguration) {
	def(&k.CPUManagerPolicy, "none")
	defTime(&k.CPUManagerReconcilePeriod, 10*time.Second)
	def(&k.MemoryManagerPolicy, kubeletconfig.NoneMemoryManagerPolicy)
	def(&k.TopologyManagerPolicy, kubeletconfig.NoneTopologyManagerPolicy)
	def(&k.TopologyManagerScope, kubeletconfig.ContainerTopologyManagerScope)
	def(&k.HairpinMode, kubeletconfig.PromiscuousBridge)
	defPtr(&k.MakeIPTablesUtilChains, true)
	defPtr(&k.IPTablesMasqueradeBit, 14)
	defPtr(&k.IPTablesDropBit, 15)
	def(&k.MemoryReservationPolicy, kubeletconfig.NoneMemoryReservationPolicy)
}
