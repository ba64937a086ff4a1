package metrics

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"wherry.dev/internal/apiserver/registry/node"
)

const (
	// patience is how long a kubelet has for its answer.
	patience = 5 * time.Second
	// abreast is how many kubelets are asked at a time, for one request.
	abreast = 100
)

// kubelets knows how to reach the kubelet of a node.
type kubelets interface {
	Kubelet(ctx context.Context, node string) (node.Kubelet, error)
}

// Scraper takes samples of nodes when somebody asks. It is the only writer of their histories.
type Scraper struct {
	ctx      context.Context //nolint:containedctx // scrapes belong to all who wait for them
	stop     context.CancelFunc
	kubelets kubelets
	scrapes  sync.WaitGroup

	mu    sync.Mutex
	nodes map[types.UID]*known
}

// known is what is known about a node, and the scrape that goes on, or nil.
type known struct {
	history
	scrape *flight
	asked  time.Time // when somebody asked last
	failed bool      // whether the last scrape failed
}

// flight is a scrape for whoever waits for it. ok is set before done is closed.
type flight struct {
	done chan struct{}
	ok   bool
}

// NewScraper returns a scraper whose scrapes end with ctx, or with Close.
func NewScraper(ctx context.Context, k kubelets) *Scraper {
	ctx, stop := context.WithCancel(ctx)
	return &Scraper{ctx: ctx, stop: stop, kubelets: k, nodes: map[types.UID]*known{}}
}

// Close ends all scrapes. Whoever asks after that gets what is known already.
func (s *Scraper) Close() {
	s.mu.Lock()
	s.stop()
	s.mu.Unlock()
	s.scrapes.Wait()
}

// all returns the histories of nodes, by their names.
func (s *Scraper) all(ctx context.Context, nodes []*corev1.Node) (map[string]history, error) {
	var mu sync.Mutex
	out := make(map[string]history, len(nodes))
	var asking sync.WaitGroup
	turns := make(chan struct{}, abreast)
	for _, n := range nodes {
		turns <- struct{}{}
		asking.Go(func() {
			defer func() { <-turns }()
			h := s.of(ctx, n)
			mu.Lock()
			defer mu.Unlock()
			out[n.Name] = h
		})
	}
	asking.Wait()
	return out, ctx.Err()
}

// of returns a node's history, or nothing if what is known is too old and there is no newer sample. The
// answers of other nodes may take long; it does not get too old meanwhile.
func (s *Scraper) of(ctx context.Context, n *corev1.Node) history {
	if h := s.sampled(ctx, n); h.current(time.Now()) {
		return h
	}
	return history{}
}

// sampled returns a node's history after as many samples as it takes, or as can be had before ctx ends.
func (s *Scraper) sampled(ctx context.Context, n *corev1.Node) history {
	for {
		h, scrape, pause := s.look(n) //nolint:contextcheck // a scrape is everybody's, and outlives who asked first
		if scrape == nil && pause == 0 {
			return h
		}
		if scrape == nil {
			timer := time.NewTimer(pause)
			select {
			case <-timer.C:
			case <-ctx.Done():
				timer.Stop()
				return h
			}
			continue
		}
		select {
		case <-scrape.done:
		case <-ctx.Done():
			return h
		}
		if !scrape.ok {
			return h
		}
	}
}

// look returns what is known about a node and, if that is not enough, the scrape or the time to wait
// for. A scrape that goes on serves everybody.
func (s *Scraper) look(n *corev1.Node) (history, *flight, time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	k := s.nodes[n.UID]
	if k == nil {
		s.forgetLocked(now)
		k = &known{}
		s.nodes[n.UID] = k
	}
	k.asked = now
	step, pause := k.next(now)
	if step != ask || s.ctx.Err() != nil {
		return k.history, nil, pause
	}
	if k.scrape == nil {
		f := &flight{done: make(chan struct{})}
		k.scrape = f
		s.scrapes.Go(func() { s.scrape(k, f, n.Name) })
	}
	return k.history, k.scrape, 0
}

// forgetLocked drops nodes that nobody has asked for since their samples were of use, such as those that
// are gone.
func (s *Scraper) forgetLocked(now time.Time) {
	for uid, k := range s.nodes {
		if k.scrape == nil && now.Sub(k.asked) > longest {
			delete(s.nodes, uid)
		}
	}
}

// scrape takes one sample. A node that goes on failing is told once.
func (s *Scraper) scrape(k *known, f *flight, name string) {
	ctx, cancel := context.WithTimeout(s.ctx, patience)
	defer cancel()
	began := time.Now()
	taken, err := s.fetch(ctx, name)
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case err == nil:
		k.history = k.add(taken, began)
	case time.Since(began) > patience/2:
		k.history = k.missed(time.Now()) // the next ones need not wait as long
	}
	if err != nil && !k.failed && s.ctx.Err() == nil {
		klog.FromContext(ctx).Error(err, "Failed to read what a node uses", "node", name)
	}
	k.failed, k.scrape, f.ok = err != nil, nil, err == nil
	close(f.done)
}

// path is where kubelets serve what metrics-server reads.
const path = "/metrics/resource"

func (s *Scraper) fetch(ctx context.Context, name string) (out sample, err error) {
	kubelet, err := s.kubelets.Kubelet(ctx, name)
	if err != nil {
		return sample{}, err
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, kubelet.URL.JoinPath(path).String(), nil)
	if err != nil {
		return sample{}, err
	}
	request.Header.Set("Accept", "text/plain")
	began := time.Now()
	response, err := kubelet.Transport.RoundTrip(request)
	if err != nil {
		return sample{}, fmt.Errorf("kubelet: %w", err)
	}
	defer func() { err = errors.Join(err, response.Body.Close()) }()
	if response.StatusCode != http.StatusOK {
		return sample{}, fmt.Errorf("kubelet: %s %s", path, response.Status)
	}
	return read(response.Body, began)
}
