// Package nodeauthorizer authorizes nodes: what the system:node role allows, narrowed to the
// objects of pods that are bound to the node (upstream's Node authorization mode).
package nodeauthorizer

import (
	"slices"
	"strings"

	"k8s.io/apiserver/pkg/authentication/user"
)

const userPrefix = "system:node:"

// Name returns the name of the node that u is, and whether u is a node. A node without a name
// counts as none.
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

// UserName returns the user name of a node.
func UserName(node string) string { return userPrefix + node }
