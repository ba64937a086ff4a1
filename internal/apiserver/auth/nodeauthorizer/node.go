// Package nodeauthorizer authorizes nodes: what the system:node role allows, narrowed to the
// objects of pods that are bound to the node (upstream's Node authorization mode).
package nodeauthorizer

import (
	"slices"
	"strings"

	"k8s.io/apiserver/pkg/authentication/user"
)

const userPrefix = "system:node:"

// Name returns the node that u is, and whether u is a node at all; a node without a
// name cannot be told from others.
func Name(u user.Info) (string, bool) {
	if u == nil || !slices.Contains(u.GetGroups(), user.NodesGroup) {
		return "", false
	}
	name, ok := strings.CutPrefix(u.GetName(), userPrefix)
	if !ok {
		return "", false
	}
	return name, true
}

// UserName is the user that a node is.
func UserName(node string) string { return userPrefix + node }
