package storage

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

const (
	// distantPatience is how long a call to an external etcd may take before it is asked whether it is there at all.
	distantPatience = 3 * time.Second
	// lostPatience is the same while it is known not to be there.
	lostPatience = 500 * time.Millisecond
	// statusPatience is how long it has for that answer.
	statusPatience = 2 * time.Second
)

// errDistant ends calls to an etcd that is not there.
var errDistant = errors.New("etcd does not answer")

// distant ends calls to an external etcd of which no server is there, or leads: its client would wait for one as long as the
// request lasts, a minute, and whoever made that would learn nothing.
type distant struct {
	endpoints []string
	status    func(ctx context.Context, endpoint string) (*clientv3.StatusResponse, error)

	asking chan struct{} // held by whoever asks
	asked  time.Time
	wrong  string // "" if one is there that has a leader
	lost   atomic.Bool
}

func newDistant(endpoints []string, status func(ctx context.Context, endpoint string) (*clientv3.StatusResponse, error)) *distant {
	return &distant{endpoints: endpoints, status: status, asking: make(chan struct{}, 1)}
}

// bounded makes a call.
func (d *distant) bounded(ctx context.Context, call func(context.Context) error) error {
	calling, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	patience := distantPatience
	if d.lost.Load() {
		patience = lostPatience
	}
	var look *time.Timer
	look = time.AfterFunc(patience, func() {
		switch wrong := d.ask(calling); {
		case calling.Err() != nil:
		case wrong != "":
			cancel(fmt.Errorf("%w: %s", errDistant, wrong))
		default:
			look.Reset(distantPatience)
		}
	})
	defer look.Stop()
	err := call(calling)
	if cause := context.Cause(calling); err != nil && ctx.Err() == nil && errors.Is(cause, errDistant) {
		err := apierrors.NewServiceUnavailable("the cluster's data is unavailable: " + cause.Error() + "; whether a write was carried out is not known")
		err.ErrStatus.Details = retryIn(1)
		return err
	}
	return err
}

// ask says what is wrong with all servers; "" if there is one with a leader. They are asked once a second, however many want to
// know.
func (d *distant) ask(ctx context.Context) string {
	d.asking <- struct{}{}
	defer func() { <-d.asking }()
	if time.Since(d.asked) < time.Second {
		return d.wrong
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), statusPatience) // others wait for the answer, too
	defer cancel()
	said := make([]string, len(d.endpoints))
	var all sync.WaitGroup
	for i, e := range d.endpoints {
		all.Go(func() {
			switch s, err := d.status(ctx, e); {
			case err != nil:
				said[i] = e
			case s.Leader == 0:
				said[i] = e + " (it has no leader)"
			default:
				cancel() // one is enough
			}
		})
	}
	all.Wait()
	d.asked, d.wrong = time.Now(), strings.Join(said, ", ")
	if slices.Contains(said, "") {
		d.wrong = ""
	}
	d.lost.Store(d.wrong != "")
	return d.wrong
}
