package volume

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"k8s.io/apimachinery/pkg/types"

	"wherry.dev/internal/kubelet/criconfig"
	"wherry.dev/internal/record"
)

// bound is what a claim of a pod turned out to be. It is on the disk before the volume is set up, and until all of the
// pod's volumes are taken down: what becomes of the claim meanwhile does not change what the pod has.
type bound struct {
	// Volume is the PersistentVolume.
	Volume string
	// Claim that is bound to it, in the pod's namespace.
	Claim    string
	ClaimUID types.UID
	location
	// Folder of the kind in the pod's directory; "" for a volume that is not in there.
	Folder string `json:",omitempty"`
	// Size is how many bytes the volume is to have.
	Size int64 `json:",omitempty"`
}

const boundVersion = 1

// boundEnding is that of the files' names. A volume's name has no dot.
const boundEnding = ".json"

func boundFile(dirs criconfig.Dirs, uid types.UID, name string) string {
	return filepath.Join(dirs.Claims(uid), name+boundEnding)
}

// readBound returns what is known of a claim, by the volume's name in the pod's spec.
func readBound(dirs criconfig.Dirs, uid types.UID, name string) (bound, error) {
	var b bound
	_, err := record.Read(boundFile(dirs, uid, name), &b)
	return b, err
}

// writeBound makes it known. It has to outlive the process, not the machine, with which all mounts end.
func writeBound(dirs criconfig.Dirs, uid types.UID, name string, b bound) error {
	if err := os.MkdirAll(dirs.Claims(uid), 0o750); err != nil {
		return err
	}
	return record.WriteCached(boundFile(dirs, uid, name), boundVersion, b)
}

// boundOf returns what the claims of a pod turned out to be, by the volumes' names in the pod's spec. It leaves out what
// cannot be read, which is as good as not there: it is found out anew.
func boundOf(dirs criconfig.Dirs, uid types.UID) (map[string]bound, error) {
	entries, err := os.ReadDir(dirs.Claims(uid))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	out := map[string]bound{}
	for _, e := range entries {
		name, ok := strings.CutSuffix(e.Name(), boundEnding)
		if !ok || record.IsTemporary(e.Name()) {
			continue
		}
		b, err := readBound(dirs, uid, name)
		_, corrupt := errors.AsType[*record.CorruptError](err)
		switch {
		case corrupt, errors.Is(err, fs.ErrNotExist):
		case err != nil:
			return nil, err
		default:
			out[name] = b
		}
	}
	return out, nil
}

// others returns what other pods of the node have of a PersistentVolume.
func (m *Mounter) others(uid types.UID, volume string) ([]bound, error) {
	pods, err := os.ReadDir(m.Dirs.Pods())
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	var out []bound
	for _, p := range pods {
		other := types.UID(p.Name())
		if other == uid {
			continue
		}
		bound, err := boundOf(m.Dirs, other)
		if err != nil {
			return nil, err
		}
		for _, b := range bound {
			if b.Volume == volume {
				out = append(out, b)
			}
		}
	}
	return out, nil
}

// waiting are the pods that could not have a PersistentVolume because another pod has it. It is only about whom to wake.
type waiting struct {
	mu   sync.Mutex
	pods map[string][]types.UID // by volume
}

func (m *Mounter) waitFor(volume string, uid types.UID) {
	m.waiting.mu.Lock()
	defer m.waiting.mu.Unlock()
	if m.waiting.pods == nil {
		m.waiting.pods = map[string][]types.UID{}
	}
	if !slices.Contains(m.waiting.pods[volume], uid) {
		m.waiting.pods[volume] = append(m.waiting.pods[volume], uid)
	}
}

// wakeOthers has those who wait for a volume look again.
func (m *Mounter) wakeOthers(volume string) {
	m.waiting.mu.Lock()
	pods := m.waiting.pods[volume]
	delete(m.waiting.pods, volume)
	m.waiting.mu.Unlock()
	for _, uid := range pods {
		if m.Freed != nil {
			m.Freed(uid)
		}
	}
}
