package scheduler

import (
	"context"
	"slices"
	"sync"
	"testing"
	"testing/synctest"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	fwk "k8s.io/kube-scheduler/framework"
)

// TestTheLatestStatusIsWritten: those of one pod never at once, and none that is out of date; a nomination that
// waits is not lost.
func TestTheLatestStatusIsWritten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		goOn := make(chan struct{})
		var mu sync.Mutex
		var written []string
		w := newStatusWriter(func(_ context.Context, u *statusUpdate) {
			<-goOn
			mu.Lock()
			defer mu.Unlock()
			text := u.pod.Name + " " + u.message
			if u.nominated.Mode() == fwk.ModeOverride {
				text += " " + u.nominated.NominatedNodeName
			}
			written = append(written, text)
		})
		put := func(name, message string, nominated *fwk.NominatingInfo) {
			pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name)}}
			w.put(t.Context(), pod.UID, &statusUpdate{pod: pod, message: message, nominated: nominated})
			synctest.Wait()
		}
		put("a", "1", nil)
		put("a", "2", &fwk.NominatingInfo{NominatingMode: fwk.ModeOverride, NominatedNodeName: "n"})
		put("a", "3", nil)
		put("b", "1", nil)
		close(goOn)
		w.wait()
		slices.Sort(written)
		if !slices.Equal(written, []string{"a 1", "a 3 n", "b 1"}) || len(w.waiting) != 0 {
			t.Errorf("%v, %d wait", written, len(w.waiting))
		}
	})
}
