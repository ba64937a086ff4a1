// Package volumehealth asks CSI drivers whether something is wrong with the node's volumes, or with the storage behind
// them, and tells the cluster of it: in the statuses of pods and of the CSINode (KEP-1432, gate CSIVolumeHealth, off by
// default). Nothing here acts upon it.
//
// Drivers are asked every period, since CSI has nothing that tells. Each is asked by itself, so that one that hangs delays
// no other. A driver that does not answer leaves what it said before.
package volumehealth

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/klog/v2"

	"wherry.dev/internal/api/pods"
	"wherry.dev/internal/kubelet/csi"
	"wherry.dev/internal/kubelet/volume"
)

// Manager knows the health of the node's volumes, and of what is behind its drivers.
type Manager struct {
	Drivers *csi.Drivers
	// Client writes the health of storage to the CSINode of the node.
	Client   kubernetes.Interface
	NodeName string
	// Volumes returns the volumes that drivers are asked about.
	Volumes func() ([]volume.Attempted, error)
	// Period is how often they are asked.
	Period time.Duration
	// Changed is called with a pod whose volumes are better or worse than they were.
	Changed func(types.UID)

	asked sync.WaitGroup

	mu sync.Mutex
	// busy are the drivers that have not answered yet.
	busy map[string]bool
	// volumes has the answers.
	volumes map[id]answer
	// storage has what was told of what is wrong behind each driver.
	storage map[string][]storagev1.StorageHealthCondition
}

// id is a volume of a pod.
type id struct {
	pod  types.UID
	name string
}

type answer struct {
	conditions []v1.VolumeHealthCondition // sorted
	// since is when it was first given.
	since metav1.Time
}

// Run asks all drivers until ctx ends.
func (m *Manager) Run(ctx context.Context) error {
	defer m.asked.Wait()
	tick := time.NewTicker(m.Period)
	defer tick.Stop()
	for {
		m.round(ctx)
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// round asks each driver that is not busy.
func (m *Manager) round(ctx context.Context) {
	drivers := m.Drivers.Names()
	m.takeBack(ctx, drivers)
	if len(drivers) == 0 {
		return
	}
	all, err := m.Volumes()
	if err != nil {
		klog.FromContext(ctx).Error(err, "Cannot tell which volumes there are, their health is not asked for")
		return
	}
	m.forgetOthers(all)
	for _, driver := range drivers {
		if !m.begin(driver) {
			continue
		}
		mine := slices.DeleteFunc(slices.Clone(all), func(a volume.Attempted) bool { return a.Driver != driver })
		m.asked.Go(func() {
			defer m.end(driver)
			if err := m.ask(ctx, driver, mine); err != nil && ctx.Err() == nil {
				klog.FromContext(ctx).V(2).Info("A CSI driver does not tell the health of its volumes", "driver", driver, "err", err)
			}
		})
	}
}

func (m *Manager) begin(driver string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.busy[driver] {
		return false
	}
	if m.busy == nil {
		m.busy = map[string]bool{}
	}
	m.busy[driver] = true
	return true
}

func (m *Manager) end(driver string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.busy, driver)
}

// forgetOthers forgets volumes that are no longer there.
func (m *Manager) forgetOthers(all []volume.Attempted) {
	there := map[id]bool{}
	for _, a := range all {
		there[id{a.Pod, a.Name}] = true
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for v := range m.volumes {
		if !there[v] {
			delete(m.volumes, v)
		}
	}
}

// ask asks one driver about all that is its own. It goes on after a volume for which the driver has an error, but not after
// one for which it hangs: each of the others could take as long.
func (m *Manager) ask(ctx context.Context, driver string, volumes []volume.Attempted) error {
	var can csi.Abilities
	err := m.Drivers.Call(ctx, driver, func(ctx context.Context, c csipb.NodeClient) (err error) {
		can, err = csi.Can(ctx, c)
		return err
	})
	if err != nil {
		return err
	}
	var failed error
	if can[csipb.NodeServiceCapability_RPC_GET_STORAGE_HEALTH] {
		failed = m.askStorage(ctx, driver)
	}
	if !can[csipb.NodeServiceCapability_RPC_GET_VOLUME_HEALTH] {
		return failed
	}
	for _, v := range volumes {
		if !can[csipb.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME] {
			v.Staging = ""
		}
		err := m.askVolume(ctx, v)
		if status.Code(err) == codes.DeadlineExceeded {
			return err
		}
		failed = cmp.Or(err, failed)
	}
	return failed
}

func (m *Manager) askVolume(ctx context.Context, v volume.Attempted) error {
	var health *csipb.VolumeHealth
	err := m.Drivers.Call(ctx, v.Driver, func(ctx context.Context, c csipb.NodeClient) error {
		resp, err := c.NodeGetVolumeHealth(ctx, &csipb.NodeGetVolumeHealthRequest{
			VolumeId: v.Handle, VolumePublishPath: v.Published, StagingTargetPath: v.Staging,
		})
		health = resp.GetVolumeHealth()
		return err
	})
	if err == nil && (health == nil || health.GetVolumeId() != v.Handle) {
		err = fmt.Errorf("its answer is about volume %q", health.GetVolumeId())
	}
	if err != nil {
		return fmt.Errorf("volume %s: %w", v.Handle, err)
	}
	m.note(v, conditionsOf(health))
	return nil
}

// note takes down an answer.
func (m *Manager) note(v volume.Attempted, conditions []v1.VolumeHealthCondition) {
	m.mu.Lock()
	before, known := m.volumes[id{v.Pod, v.Name}]
	now := answer{conditions, metav1.Now().Rfc3339Copy()}
	if known && sameProblems(before.conditions, conditions) {
		now.since = before.since
	}
	if m.volumes == nil {
		m.volumes = map[id]answer{}
	}
	m.volumes[id{v.Pod, v.Name}] = now
	m.mu.Unlock()
	if !known || !slices.Equal(before.conditions, conditions) {
		m.Changed(v.Pod)
	}
}

// Of returns the health of a pod's volumes for its status: what drivers have said, and what was reported of the others,
// before this kubelet began. A volume with which nothing is wrong is not mentioned.
func (m *Manager) Of(pod *v1.Pod, reported []v1.PodVolumeHealth) []v1.PodVolumeHealth {
	var out []v1.PodVolumeHealth
	m.mu.Lock()
	defer m.mu.Unlock()
	for i := range pod.Spec.Volumes {
		name := pod.Spec.Volumes[i].Name
		was := slices.IndexFunc(reported, func(h v1.PodVolumeHealth) bool { return h.Name == name })
		now, known := m.volumes[id{pod.UID, name}]
		switch {
		case !known && was >= 0:
			out = append(out, reported[was])
		case len(now.conditions) == 0:
		default:
			since := now.since
			if was >= 0 && sameProblems(reported[was].HealthConditions, now.conditions) {
				since = reported[was].LastTransitionTime
			}
			out = append(out, v1.PodVolumeHealth{Name: name, HealthConditions: now.conditions, LastTransitionTime: since})
		}
	}
	return out
}

// sameProblems reports whether two sorted lists have the same conditions, whatever the messages say.
func sameProblems(a, b []v1.VolumeHealthCondition) bool { return slices.EqualFunc(a, b, sameProblem) }

func sameProblem(a, b v1.VolumeHealthCondition) bool {
	return a.Status == b.Status && a.Reason == b.Reason
}

var volumeStatuses = map[csipb.VolumeHealthErrorType]v1.VolumeHealthStatusType{
	csipb.VolumeHealthErrorType_DEGRADED:     v1.VolumeHealthDegraded,
	csipb.VolumeHealthErrorType_INACCESSIBLE: v1.VolumeHealthInaccessible,
	csipb.VolumeHealthErrorType_DATA_LOSS:    v1.VolumeHealthDataLoss,
}

// conditionsOf returns what the API takes of an answer, always in the same order: otherwise it would refuse the pod's whole
// status. Statuses of newer versions of CSI are left out, as the specification wants it.
func conditionsOf(h *csipb.VolumeHealth) []v1.VolumeHealthCondition {
	var out []v1.VolumeHealthCondition
	for _, e := range h.GetHealthStatuses() {
		if status, ok := volumeStatuses[e.GetStatus()]; ok {
			out = append(out, v1.VolumeHealthCondition{
				Status: status, Reason: reason(e.GetReason()), Message: pods.Shorten(e.GetMessage(), pods.MaxHealthMessage),
			})
		}
	}
	slices.SortFunc(out, func(a, b v1.VolumeHealthCondition) int {
		return cmp.Or(cmp.Compare(a.Status, b.Status), cmp.Compare(a.Reason, b.Reason), cmp.Compare(a.Message, b.Message))
	})
	out = slices.CompactFunc(out, sameProblem)
	return out[:min(len(out), pods.MaxHealthConditions)]
}

// reason returns a reason that the API takes. Drivers have to give one; what is wrong is told without it, too.
func reason(given string) string { return cmp.Or(pods.Shorten(given, pods.MaxHealthReason), "Unknown") }
