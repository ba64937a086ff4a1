package hollow

import (
	"fmt"
	"io"
	"sync"
	"time"
)

// progressEvery is how often progress is told.
const progressEvery = 2 * time.Second

// progress tells how many nodes are ready.
type progress struct {
	to    io.Writer
	total int
	began time.Time

	mu    sync.Mutex
	count int
	told  time.Time
}

func newProgress(cfg *Config) *progress {
	now := time.Now()
	return &progress{to: cfg.Progress, total: cfg.Nodes, began: now, told: now}
}

// add counts a node.
func (p *progress) add() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.count++
	if now := time.Now(); now.Sub(p.told) >= progressEvery && p.count < p.total {
		p.told = now
		fmt.Fprintf(p.to, "%d of %d nodes are ready\n", p.count, p.total)
	}
}

// done tells that all nodes are ready, and how long that took.
func (p *progress) done() {
	p.mu.Lock()
	defer p.mu.Unlock()
	fmt.Fprintf(p.to, "all %d nodes are ready after %s\n", p.total, time.Since(p.began).Round(100*time.Millisecond))
}
