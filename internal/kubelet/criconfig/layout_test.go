package criconfig

import (
	"path/filepath"
	"testing"

	v1 "k8s.io/api/core/v1"
)

func TestPodsCgroupsHaveTheirUIDs(t *testing.T) {
	pod := &v1.Pod{}
	pod.UID = "7b5b09a4-5f0c-4d2e-9f5e-0b0c8c1b0a11"
	for _, l := range []Layout{{Root: "/w"}, {Root: "/w", Systemd: true}} {
		if uid, ok := l.UID(filepath.Base(l.Pod(pod))); !ok || uid != string(pod.UID) {
			t.Errorf("%+v: %q %v", l, uid, ok)
		}
		if uid, ok := l.UID(filepath.Base(l.QOS(v1.PodQOSBurstable))); ok {
			t.Errorf("%+v: %q is no pod", l, uid)
		}
	}
}
