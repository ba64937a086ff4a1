package volume

import (
	"cmp"
	"path/filepath"
	"slices"

	"k8s.io/apimachinery/pkg/types"

	"wherry.dev/internal/kubelet/criconfig"
)

// Place is a volume of a pod that is on the node.
type Place struct {
	// Name in the pod's spec.
	Name, Path string
	// Claim that it belongs to, in the pod's namespace; "" for none.
	Claim string
	// Foreign: what is in it is not the pod's own, and may be on a file system that does not answer.
	Foreign bool
	// Size is how many bytes a claim's directory of the node is to hold, which nothing enforces; 0 for all other volumes.
	Size int64
}

// foreign are the folders of kinds whose volumes have something that is not the pod's own.
var foreign = []string{nfsFolder, csiFolder, iscsiFolder, fibreFolder}

// Places returns where the volumes of a pod are that have something of their own on the node, as the disk has it. It asks
// no file system but the node's own.
func Places(dirs criconfig.Dirs, uid types.UID) ([]Place, error) {
	claims, err := boundOf(dirs, uid)
	if err != nil {
		return nil, err
	}
	ofDisks, err := diskPlaces(dirs)
	if err != nil {
		return nil, err
	}
	var out []Place
	taken := map[string]bool{}
	for name, b := range claims {
		taken[b.Path] = true
		if b.Folder != "" && !b.Block {
			p := Place{Name: name, Path: b.Path, Claim: b.Claim, Foreign: true}
			if b.Folder == localFolder && !slices.Contains(ofDisks, b.Path) {
				p.Size = b.Size
			}
			out = append(out, p)
		}
	}
	own, err := filepath.Glob(filepath.Join(dirs.Volumes(uid), "*", "*"))
	if err != nil {
		return nil, err
	}
	for _, path := range own {
		name, folder := filepath.Base(path), filepath.Base(filepath.Dir(path))
		if folder == csiFolder {
			path = filepath.Join(path, csiMount)
		}
		if !taken[path] && folder != localFolder {
			out = append(out, Place{Name: name, Path: path, Foreign: slices.Contains(foreign, folder)})
		}
	}
	slices.SortFunc(out, func(a, b Place) int { return cmp.Compare(a.Name, b.Name) })
	return out, nil
}
