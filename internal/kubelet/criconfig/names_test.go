package criconfig_test

import (
	"path/filepath"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"wherry.dev/internal/kubelet/criconfig"
)

// TestLogSymlinksBeginWithTheirPrefix: a link that does not would never be removed.
func TestLogSymlinksBeginWithTheirPrefix(t *testing.T) {
	for _, length := range []int{1, 63, 64, 65, 130, 253} {
		pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: strings.Repeat("p", length), Namespace: strings.Repeat("n", 63)}}
		name := filepath.Base(criconfig.LogSymlink("/links", pod, strings.Repeat("c", 63), strings.Repeat("f", 64)))
		if !strings.HasPrefix(name, criconfig.LogSymlinkPrefix(pod)) {
			t.Errorf("a pod's name of %d characters: %s does not begin with %s", length, name, criconfig.LogSymlinkPrefix(pod))
		}
	}
}
