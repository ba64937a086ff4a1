package kubelet

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"wherry.dev/internal/api/pods"
	"wherry.dev/internal/kubelet/podplan"
	"wherry.dev/internal/kubelet/userns"
	"wherry.dev/test/disks"
)

// TestDamagedRecordsDoNotKeepTheKubeletFromStarting: records of pods and of their user namespaces.
// The running pod keeps running, and shares its IDs with no other.
func TestDamagedRecordsDoNotKeepTheKubeletFromStarting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.start()
		own := func(name string) *v1.Pod {
			p := plainPod(name, v1.RestartPolicyAlways, container("c"))
			p.Spec.HostUsers = new(false)
			return p
		}
		w.create(own("a"))
		w.until("Running", func() bool { return condition(w.get("a"), v1.PodReady) == v1.ConditionTrue })
		before := w.status("a", "c").ContainerID
		w.stop()
		for _, path := range []string{filepath.Join(w.k.dirs.Pod("uid-a"), "userns"), filepath.Join(w.cfg.RootDir, "records", "uid-a.json")} {
			if _, err := os.Stat(path); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, []byte(`{"version":1,"da`), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		w.start()
		w.create(own("b"))
		w.until("Running", func() bool { return condition(w.get("b"), v1.PodReady) == v1.ConditionTrue })
		ranges := map[uint32]string{}
		for _, uid := range []string{"uid-a", "uid-b"} {
			list, err := w.rt.ListPodSandbox(t.Context(), &runtimeapi.PodSandboxFilter{LabelSelector: map[string]string{pods.LabelPodUID: uid}})
			if err != nil || len(list) != 1 {
				t.Fatalf("%d sandboxes of %s: %v", len(list), uid, err)
			}
			r, ok, err := userns.Shown(t.Context(), w.k.deps.Runtime, w.get(uid[4:]).UID)
			if !ok || err != nil || ranges[r.First] != "" {
				t.Errorf("pod %s has %+v, as has %q: %v", uid, r, ranges[r.First], err)
			}
			ranges[r.First] = uid
		}
		if c := w.status("a", "c"); c.ContainerID != before || c.RestartCount != 0 {
			t.Errorf("the running container was replaced: %+v", c)
		}
		w.remove("a", 1)
		w.until("gone", func() bool { return w.gone("a") })
		w.stop()
	})
}

// The record of an ending pod is written before the pod ends. On a full disk there is no space for
// it, and the pod may be what fills the disk.
func TestFullDiskDoesNotKeepAPodFromEnding(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		records := filepath.Join(w.cfg.RootDir, "records")
		if err := os.MkdirAll(records, 0o700); err != nil {
			t.Fatal(err)
		}
		disks.Tmpfs(t, records, "size=64k")
		w.start()
		for _, name := range []string{"evicted", "deleted"} {
			w.create(plainPod(name, v1.RestartPolicyAlways, container("c")))
			w.until("Running", func() bool { return condition(w.get(name), v1.PodReady) == v1.ConditionTrue })
		}
		hog := filepath.Join(records, "hog")
		if err := os.WriteFile(hog, make([]byte, 1<<20), 0o600); !errors.Is(err, unix.ENOSPC) {
			t.Fatal(err)
		}
		w.k.table.Evict("uid-evicted", podplan.Ending{Since: time.Now(), Reason: podplan.ReasonEvicted, Message: "low", Grace: new(int64)})
		w.until("Failed", func() bool { return w.get("evicted").Status.Phase == v1.PodFailed })
		w.remove("deleted", 1)
		w.until("gone", func() bool { return w.gone("deleted") })
		if err := os.Remove(hog); err != nil {
			t.Fatal(err)
		}
		w.until("recorded", func() bool {
			rec, err := w.k.records.Read("uid-evicted")
			return err == nil && rec.Ending != nil && rec.Ending.Reason == podplan.ReasonEvicted
		})
		w.stop()
	})
}
