package podops

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

const (
	// firstProgress is how long a pull runs before the first event, lastProgress the longest time
	// between two events of a long pull; in between the interval doubles.
	firstProgress = 10 * time.Second
	lastProgress  = 5 * time.Minute
)

// tellProgress reports by events how far a pull has got, until the returned function is called. A
// runtime that says nothing about it is asked only once.
func (o *Ops) tellProgress(ctx context.Context, want wanted, image *runtimeapi.ImageSpec) func() {
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for wait := firstProgress; ; wait = min(2*wait, lastProgress) {
			t := time.NewTimer(wait)
			select {
			case <-ctx.Done():
				t.Stop()
				return
			case <-t.C:
			}
			text := o.progress(ctx, image)
			if text == "" {
				return
			}
			o.Events.Eventf(want.ref, v1.EventTypeNormal, "Pulling", "Pulling image %q: %s", want.image, text)
		}
	}()
	return func() {
		cancel()
		<-done
	}
}

// progress asks the runtime how far the pull of an image has got.
func (o *Ops) progress(ctx context.Context, image *runtimeapi.ImageSpec) string {
	resp, err := o.Images.ImageStatus(ctx, image, true)
	if err != nil {
		return ""
	}
	var p struct {
		Done, Total        int64
		LayersDone, Layers int
	}
	if err := json.Unmarshal([]byte(resp.GetInfo()["pulling"]), &p); err != nil || p.Total == 0 {
		return ""
	}
	return fmt.Sprintf("%s of %s, %d of %d layers unpacked", bytesOf(p.Done), bytesOf(p.Total), p.LayersDone, p.Layers)
}

func bytesOf(n int64) string {
	return resource.NewQuantity(n>>20<<20, resource.BinarySI).String()
}
