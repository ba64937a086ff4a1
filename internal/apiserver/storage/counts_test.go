package storage

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/storage"
	flowcontrolrequest "k8s.io/apiserver/pkg/util/flowcontrol/request"
)

// counted is storage that can be counted, and nothing else.
type counted struct {
	storage.Interface
	asked, objects int64
	err            error
}

func (c *counted) Stats(context.Context) (storage.Stats, error) {
	c.asked++
	return storage.Stats{ObjectCount: c.objects}, c.err
}

func TestCountsAreAskedForByWhoNeedsThem(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		counts, pods := newCounts(t.Context()), &counted{objects: 3}
		remove := counts.add(schema.GroupResource{Group: "g", Resource: "pods"}, pods)
		get := func(want int64, wantErr error) {
			t.Helper()
			stats, err := counts.Get("pods.g")
			if stats.ObjectCount != want || !errors.Is(err, wantErr) {
				t.Errorf("%d, %v; want %d, %v", stats.ObjectCount, err, want, wantErr)
			}
			synctest.Wait()
		}
		get(0, flowcontrolrequest.ObjectCountNotFoundErr)
		pods.objects = 5
		get(3, nil)
		time.Sleep(countAge + time.Second)
		get(3, nil)
		get(5, nil)
		if pods.asked != 2 {
			t.Errorf("asked %d times", pods.asked)
		}
		pods.err = errors.New("down")
		time.Sleep(countAge + 3*countTimeout)
		get(5, flowcontrolrequest.ObjectCountStaleErr)
		pods.err = nil
		time.Sleep(2 * countTimeout)
		get(5, flowcontrolrequest.ObjectCountStaleErr) // asks, and the next one knows
		get(5, nil)
		remove()
		get(0, flowcontrolrequest.ObjectCountNotFoundErr)
		counts.close()
	})
}
