package volume

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"sync"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/types"

	"wherry.dev/internal/api/attachments"
	"wherry.dev/internal/kubelet/criconfig"
	"wherry.dev/internal/record"
)

// The names are upstream's, so that one kubelet can take over from another.
const (
	csiMount    = "mount"
	volDataFile = "vol_data.json"

	keySpecVolID  = "specVolID"
	keyHandle     = "volumeHandle"
	keyDriver     = "driverName"
	keyNode       = "nodeName"
	keyAttachment = "attachmentID"
	keyLifecycle  = "volumeLifecycleMode"
	// keyAsked is ours: the driver was asked to publish it, and has to be asked to undo that.
	keyAsked = "wherry.dev/asked"
	// keyPublished is ours: publishing is complete. keyStaged has the boot in which staging was completed.
	keyPublished = "wherry.dev/published"
	keyStaged    = "wherry.dev/staged"
)

// volData is what is written down of a volume, next to where it is mounted.
type volData map[string]string

func readVolData(dir string) (volData, error) {
	doc, err := os.ReadFile(filepath.Join(dir, volDataFile))
	if err != nil {
		return nil, err
	}
	var data volData
	if err := json.Unmarshal(doc, &data); err != nil {
		return nil, fmt.Errorf("%s of %s: %w", volDataFile, dir, err)
	}
	if data[keyDriver] == "" || data[keyHandle] == "" {
		return nil, fmt.Errorf("%s of %s names no driver and volume", volDataFile, dir)
	}
	return data, nil
}

// write is durable: the driver may keep more of a volume than the machine does when it is switched off.
func (d volData) write(dir string) error {
	doc, err := json.Marshal(d)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return err
	}
	path := filepath.Join(dir, volDataFile)
	if have, err := os.ReadFile(path); err == nil && string(have) == string(doc) {
		return nil
	}
	return record.WriteFile(path, doc, 0o640)
}

// with returns what is to be written to a folder, with what is written there under a key.
func (d volData) with(dir, key string) volData {
	out := maps.Clone(d)
	if before, err := readVolData(dir); err == nil && before[key] != "" {
		out[key] = before[key]
	}
	return out
}

func removeVolData(dir string) error {
	err := record.Sweep(dir)
	if err == nil {
		err = os.Remove(filepath.Join(dir, volDataFile))
	}
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// csiFiles are where the node has a volume.
type csiFiles struct {
	// staging is where the driver stages it; "" if it does not.
	staging string
	// data is the folder of its vol_data.json.
	data string
	// publish is the folder in which a device is published for each pod.
	publish string
	// below is where the empty folders end that go with the volume.
	below string
}

// pluginRoot is where the node has what pods share of a kind of volumes, at upstream's path.
func pluginRoot(dirs criconfig.Dirs, plugin string) string {
	return filepath.Join(dirs.Root, "plugins", "kubernetes.io", plugin)
}

func csiRoot(dirs criconfig.Dirs) string { return pluginRoot(dirs, "csi") }

// filesOf is where a volume with a file system is.
func filesOf(dirs criconfig.Dirs, driver, handle string) csiFiles {
	data := filepath.Join(csiRoot(dirs), driver, sum(handle))
	return csiFiles{staging: filepath.Join(data, "globalmount"), data: data, below: csiRoot(dirs)}
}

const devicesFolder = "volumeDevices"

// deviceFiles is where a device is.
func deviceFiles(dirs criconfig.Dirs, pv string) csiFiles {
	root := filepath.Join(csiRoot(dirs), devicesFolder)
	return csiFiles{
		staging: filepath.Join(root, "staging", pv), publish: filepath.Join(root, "publish", pv), data: filepath.Join(root, pv, "data"),
		below: filepath.Join(root),
	}
}

// published is where a device is published for a pod.
func (f csiFiles) published(uid types.UID) string { return filepath.Join(f.publish, string(uid)) }

// remove removes what the node had of a volume: empty folders, and the record as the last thing that matters.
func (f csiFiles) remove() error {
	if err := removePlace(f.staging); err != nil {
		return err
	}
	if f.publish != "" {
		if err := removePlace(f.publish); err != nil {
			return err
		}
	}
	if err := removeVolData(f.data); err != nil {
		return err
	}
	for dir := f.data; dir != f.below; dir = filepath.Dir(dir) {
		if err := os.Remove(dir); err != nil { // others of the driver's are in there
			return nil //nolint:nilerr // it is a matter of tidiness
		}
	}
	return nil
}

// publishedAnywhere reports whether a pod has a volume published, or is about to.
func publishedAnywhere(dirs criconfig.Dirs, data volData) (bool, error) {
	all, err := filepath.Glob(filepath.Join(dirs.Pods(), "*", "volumes", csiFolder, "*", volDataFile))
	if err != nil {
		return false, err
	}
	for _, path := range all {
		other, err := readVolData(filepath.Dir(path))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return false, err
		}
		if other[keyDriver] == data[keyDriver] && other[keyHandle] == data[keyHandle] &&
			other[keyLifecycle] != string(storagev1.VolumeLifecycleEphemeral) {
			return true, nil
		}
	}
	return false, nil
}

// csiInUse returns the volumes of drivers that somebody attaches and that the node has, or is about to have.
func csiInUse(dirs criconfig.Dirs) ([]v1.UniqueVolumeName, error) {
	all, err := stagedOn(dirs)
	if err != nil {
		return nil, err
	}
	var out []v1.UniqueVolumeName
	for _, s := range all {
		if s.attached {
			out = append(out, attachments.VolumeName(s.driver, s.handle))
		}
	}
	return out, nil
}

func sum(s string) string {
	h := sha256.Sum256([]byte(s))
	return hex.EncodeToString(h[:])
}

// bootID is another one after each boot of the machine, with which all mounts end.
var bootID = sync.OnceValue(func() string {
	id, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "unknown" // then a driver is asked once more than needed, or what is mounted decides
	}
	return strings.TrimSpace(string(id))
})
