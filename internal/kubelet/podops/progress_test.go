package podops

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	internalapi "k8s.io/cri-api/pkg/apis"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// pulling is a runtime that has 10 MiB more of an image after each second; without details it does
// not report progress.
type pulling struct {
	internalapi.ImageManagerService
	began  time.Time
	silent bool
	asked  int
}

func (p *pulling) ImageStatus(context.Context, *runtimeapi.ImageSpec, bool) (*runtimeapi.ImageStatusResponse, error) {
	p.asked++
	if p.silent {
		return &runtimeapi.ImageStatusResponse{}, nil
	}
	done := int64(time.Since(p.began).Seconds()) * 10 << 20
	return &runtimeapi.ImageStatusResponse{Info: map[string]string{"pulling": fmt.Sprintf(`{"done":%d,"total":%d,"layersDone":1,"layers":3}`, done, 2<<30)}}, nil
}

type told struct{ events []string }

func (t *told) Eventf(_ runtime.Object, _, reason, format string, args ...any) {
	t.events = append(t.events, reason+": "+fmt.Sprintf(format, args...))
}

func TestLongPullsTellHowFarTheyAre(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		events := &told{}
		o := New(Config{}, Deps{Images: &pulling{began: time.Now()}, Events: events})
		stop := o.tellProgress(t.Context(), wanted{image: "big", ref: &v1.ObjectReference{}}, &runtimeapi.ImageSpec{})
		time.Sleep(75 * time.Second)
		stop()
		time.Sleep(time.Hour)
		want := []string{
			`Pulling: Pulling image "big": 100Mi of 2Gi, 1 of 3 layers unpacked`,
			`Pulling: Pulling image "big": 300Mi of 2Gi, 1 of 3 layers unpacked`,
			`Pulling: Pulling image "big": 700Mi of 2Gi, 1 of 3 layers unpacked`,
		}
		if !slices.Equal(events.events, want) {
			t.Errorf("%q", events.events)
		}
		silent := &pulling{silent: true}
		o.Images = silent
		stop = o.tellProgress(t.Context(), wanted{ref: &v1.ObjectReference{}}, &runtimeapi.ImageSpec{})
		time.Sleep(time.Hour)
		stop()
		if silent.asked != 1 || len(events.events) != len(want) {
			t.Errorf("a runtime that says nothing was asked %d times", silent.asked)
		}
	})
}
