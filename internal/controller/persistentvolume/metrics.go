package persistentvolume

import (
	"sync/atomic"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/legacyregistry"
	"k8s.io/component-helpers/storage/volume"
	"k8s.io/utils/ptr"
)

// Metrics under upstream's names.
var (
	totalDesc = metrics.NewDesc("pv_collector_total_pv_count",
		"Number of PersistentVolumes, by the kind of volume and its mode.",
		[]string{"plugin_name", "volume_mode"}, nil, metrics.ALPHA, "")
	boundDesc = metrics.NewDesc("pv_collector_bound_pv_count",
		"Number of PersistentVolumes that are bound.", []string{"storage_class"}, nil, metrics.ALPHA, "")
	unboundDesc = metrics.NewDesc("pv_collector_unbound_pv_count",
		"Number of PersistentVolumes that are not bound.", []string{"storage_class"}, nil, metrics.ALPHA, "")
	boundClaimsDesc = metrics.NewDesc("pv_collector_bound_pvc_count",
		"Number of PersistentVolumeClaims that are bound.", claimLabels, nil, metrics.ALPHA, "")
	unboundClaimsDesc = metrics.NewDesc("pv_collector_unbound_pvc_count",
		"Number of PersistentVolumeClaims that are not bound.", claimLabels, nil, metrics.ALPHA, "")

	claimLabels = []string{"namespace", "storage_class", "volume_attributes_class"}

	retroactive = metrics.NewCounter(&metrics.CounterOpts{
		Name: "retroactive_storageclass_total", StabilityLevel: metrics.ALPHA,
		Help: "Number of claims without a class that were given the default class.",
	})
	retroactiveErrors = metrics.NewCounter(&metrics.CounterOpts{
		Name: "retroactive_storageclass_errors_total", StabilityLevel: metrics.ALPHA,
		Help: "Number of times that a claim without a class could not be given the default class.",
	})
)

// listers are those of the controller that was built last: there is one in a process, but for tests.
type listers struct {
	volumes corelisters.PersistentVolumeLister
	claims  corelisters.PersistentVolumeClaimLister
}

var counted atomic.Pointer[listers]

func init() {
	legacyregistry.CustomMustRegister(&census{})
	legacyregistry.MustRegister(retroactive, retroactiveErrors)
}

func register(volumes corelisters.PersistentVolumeLister, claims corelisters.PersistentVolumeClaimLister) {
	counted.Store(&listers{volumes, claims})
}

func countRetroactive(err error) {
	if err != nil {
		retroactiveErrors.Inc()
		return
	}
	retroactive.Inc()
}

// census counts volumes and claims when somebody asks.
type census struct{ metrics.BaseStableCollector }

// DescribeWithStability implements metrics.StableCollector.
func (*census) DescribeWithStability(ch chan<- *metrics.Desc) {
	for _, d := range []*metrics.Desc{totalDesc, boundDesc, unboundDesc, boundClaimsDesc, unboundClaimsDesc} {
		ch <- d
	}
}

// series is one of a metric's; its labels are what they are called in the description.
type series struct {
	desc   *metrics.Desc
	labels [3]string
}

// CollectWithStability implements metrics.StableCollector.
func (*census) CollectWithStability(ch chan<- metrics.Metric) {
	from := counted.Load()
	if from == nil {
		return
	}
	volumes, err := from.volumes.List(labels.Everything())
	if err != nil {
		return // a lister has no errors
	}
	claims, err := from.claims.List(labels.Everything())
	if err != nil {
		return
	}
	count := map[series]int{}
	for _, pv := range volumes {
		desc := unboundDesc
		if pv.Status.Phase == v1.VolumeBound {
			desc = boundDesc
		}
		count[series{desc, [3]string{pv.Spec.StorageClassName}}]++
		count[series{totalDesc, [3]string{kindOf(pv), string(ptr.Deref(pv.Spec.VolumeMode, v1.PersistentVolumeFilesystem))}}]++
	}
	for _, claim := range claims {
		desc := unboundClaimsDesc
		if claim.Status.Phase == v1.ClaimBound {
			desc = boundClaimsDesc
		}
		count[series{desc, [3]string{claim.Namespace, volume.GetPersistentVolumeClaimClass(claim), ptr.Deref(claim.Spec.VolumeAttributesClassName, "")}}]++
	}
	width := map[*metrics.Desc]int{totalDesc: 2, boundDesc: 1, unboundDesc: 1, boundClaimsDesc: 3, unboundClaimsDesc: 3}
	for s, n := range count {
		ch <- metrics.NewLazyConstMetric(s.desc, metrics.GaugeValue, float64(n), s.labels[:width[s.desc]]...)
	}
}

// kindOf returns upstream's name for a volume's kind. Those that its controller does not know are N/A.
func kindOf(pv *v1.PersistentVolume) string {
	switch s := &pv.Spec.PersistentVolumeSource; {
	case s.HostPath != nil:
		return "kubernetes.io/host-path"
	case s.NFS != nil:
		return "kubernetes.io/nfs"
	case s.CSI != nil:
		return "kubernetes.io/csi:" + s.CSI.Driver
	}
	return "N/A"
}
