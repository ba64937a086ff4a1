package cpus

import (
	"context"
	"errors"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/klog/v2"
)

// tryAgain is after how long a container is told again on which CPUs it may run, if it could not be told.
const tryAgain = time.Second

// Keeper keeps running containers on their CPUs.
type Keeper struct {
	// Want returns on which CPUs each running container may run, by ID.
	Want func() map[string]string
	// Runtime tells a container.
	Runtime interface {
		UpdateContainerResources(ctx context.Context, id string, r *runtimeapi.ContainerResources) error
	}

	mu   sync.Mutex // held while containers are told
	told map[string]string
	poke chan struct{}
}

// NewKeeper returns a Keeper that has told nobody yet.
func NewKeeper() *Keeper { return &Keeper{told: map[string]string{}, poke: make(chan struct{}, 1)} }

// Poke has the keeper look: something has changed.
func (k *Keeper) Poke() {
	select {
	case k.poke <- struct{}{}:
	default:
	}
}

// Run tells containers until ctx ends. At first all are told: the kubelet may have been killed before it could.
func (k *Keeper) Run(ctx context.Context) error {
	for {
		var again <-chan time.Time
		if err := k.Tell(ctx); err != nil && ctx.Err() == nil {
			klog.FromContext(ctx).Error(err, "Cannot tell containers on which CPUs they may run, will try again")
			again = time.After(tryAgain)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-k.poke:
		case <-again:
		}
	}
}

// Tell tells all containers that may run on other CPUs than they were told last. When it returns nil, none is on CPUs that
// it must leave.
func (k *Keeper) Tell(ctx context.Context) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	want := k.Want()
	for id := range k.told {
		if _, runs := want[id]; !runs {
			delete(k.told, id)
		}
	}
	var errs []error
	for id, set := range want {
		if k.told[id] == set {
			continue
		}
		err := k.Runtime.UpdateContainerResources(ctx, id, &runtimeapi.ContainerResources{Linux: &runtimeapi.LinuxContainerResources{CpusetCpus: set}})
		switch c := status.Code(err); {
		case err == nil:
			k.told[id] = set
		case c == codes.NotFound, c == codes.FailedPrecondition: // it has ended
		default:
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}
