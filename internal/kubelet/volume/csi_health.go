package volume

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"k8s.io/apimachinery/pkg/types"

	"wherry.dev/internal/kubelet/criconfig"
)

// Attempted is a volume of a claim that a CSI driver has published for a pod, or was about to.
type Attempted struct {
	Pod types.UID
	// Name in the pod's spec.
	Name           string
	Driver, Handle string
	// Staging and Published are the paths at which the driver stages and publishes it, if it comes to that.
	Staging, Published string
}

// AttemptedOf returns the CSI volumes of all pods of the node, as the disk has it. A pod that goes meanwhile is left out.
func AttemptedOf(dirs criconfig.Dirs) ([]Attempted, error) {
	pods, err := os.ReadDir(dirs.Pods())
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var out []Attempted
	for _, p := range pods {
		uid := types.UID(p.Name())
		claims, err := boundOf(dirs, uid)
		if err != nil {
			return nil, err
		}
		for name, b := range claims {
			if b.Folder != csiFolder {
				continue
			}
			a := Attempted{Pod: uid, Name: name, Published: b.Path}
			data := filepath.Dir(b.Path)
			if b.Block {
				files := deviceFiles(dirs, b.Volume)
				data, a.Staging, a.Published = files.data, files.staging, files.published(uid)
			}
			known, err := readVolData(data)
			if err != nil { // the driver has not been asked for it
				continue
			}
			a.Driver, a.Handle = known[keyDriver], known[keyHandle]
			if !b.Block {
				a.Staging = filesOf(dirs, a.Driver, a.Handle).staging
			}
			out = append(out, a)
		}
	}
	return out, nil
}
