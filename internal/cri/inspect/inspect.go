// Package inspect packs the extra information in verbose statuses. The names in it are those of
// containerd and CRI-O, for which people have scripts: the PID, the network namespace's path, the spec.
package inspect

import "encoding/json"

// Snapshotter is containerd's name for layers stacked by overlayfs.
const Snapshotter = "overlayfs"

// Pack packs a document the way CRI wants it: as text in a map.
func Pack(key string, v any) (map[string]string, error) {
	doc, err := json.Marshal(v)
	return map[string]string{key: string(doc)}, err
}
