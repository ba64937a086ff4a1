package framework

import (
	"context"
	"math"

	"k8s.io/client-go/util/workqueue"
	fwk "k8s.io/kube-scheduler/framework"
)

// DefaultParallelism is how many goroutines look at nodes at once (parallelism in
// KubeSchedulerConfiguration).
const DefaultParallelism = 16

// inline is the number of pieces up to which starting goroutines costs more than it gains.
const inline = 16

// Parallelizer runs a function for many nodes.
type Parallelizer struct{ parallelism int }

var _ fwk.Parallelizer = Parallelizer{}

// NewParallelizer returns one with a number of goroutines.
func NewParallelizer(parallelism int) Parallelizer { return Parallelizer{parallelism} }

// Until calls the function for 0 to pieces-1, until ctx ends. A few pieces are done by the caller.
func (p Parallelizer) Until(ctx context.Context, pieces int, do workqueue.DoWorkPieceFunc, _ string) {
	if pieces <= inline || p.parallelism == 1 {
		for i := 0; i < pieces && ctx.Err() == nil; i++ {
			do(i)
		}
		return
	}
	// Chunks that are neither so small that handing them out costs more than the work, nor so large that
	// some goroutines have none.
	chunk := max(1, min(int(math.Sqrt(float64(pieces))), pieces/p.parallelism+1))
	workqueue.ParallelizeUntil(ctx, p.parallelism, pieces, do, workqueue.WithChunkSize(chunk))
}
