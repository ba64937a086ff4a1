package metrics

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"wherry.dev/internal/apiserver/registry/node"
)

// fleet is kubelets whose nodes use half a core, each by its name.
type fleet struct {
	mu     sync.Mutex
	asked  map[string]int
	broken map[string]func(*http.Request) (*http.Response, error)
	takes  time.Duration
}

func (f *fleet) Kubelet(_ context.Context, name string) (node.Kubelet, error) {
	return node.Kubelet{URL: url.URL{Scheme: "https", Host: name}, Transport: f}, nil
}

// RoundTrip implements http.RoundTripper.
func (f *fleet) RoundTrip(r *http.Request) (*http.Response, error) {
	f.mu.Lock()
	f.asked[r.URL.Host]++
	broken, takes := f.broken[r.URL.Host], f.takes
	f.mu.Unlock()
	if broken != nil {
		return broken(r)
	}
	time.Sleep(takes)
	now := time.Now()
	text := fmt.Sprintf("node_cpu_usage_seconds_total %f %d\nnode_memory_working_set_bytes 5 %[2]d\n", float64(now.Unix())/2, now.UnixMilli())
	return response(http.StatusOK, text), nil
}

func response(code int, text string) *http.Response {
	return &http.Response{StatusCode: code, Status: fmt.Sprint(code), Body: io.NopCloser(strings.NewReader(text))}
}

func (f *fleet) want(t *testing.T, when string, want map[string]int) {
	t.Helper()
	f.mu.Lock()
	defer f.mu.Unlock()
	for name, n := range want {
		if f.asked[name] != n {
			t.Errorf("%s: %s was asked %d times, want %d", when, name, f.asked[name], n)
		}
	}
}

func called(name string) *corev1.Node {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name)}}
}

// inBubble runs a test in virtual time.
func inBubble(t *testing.T, f *fleet, test func(t *testing.T, s *Scraper)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		f.asked = map[string]int{}
		s := NewScraper(t.Context(), f)
		defer s.Close()
		test(t, s)
	})
}

// known returns the nodes, of those that are asked for, whose usage is known.
func usageOf(t *testing.T, s *Scraper, names ...string) (out string, took time.Duration) {
	t.Helper()
	var asked []*corev1.Node
	for _, n := range names {
		asked = append(asked, called(n))
	}
	began := time.Now()
	histories, err := s.all(t.Context(), asked)
	if err != nil {
		t.Error(err)
	}
	for _, n := range asked {
		if m, ok := histories[n.Name].nodeMetrics(n, time.Now()); ok {
			out += fmt.Sprintf("%s %s %s ", n.Name, m.Usage.Cpu(), m.Window.Duration)
		}
	}
	return strings.TrimSpace(out), time.Since(began)
}

func TestSamplesAreTakenWhenSomebodyAsks(t *testing.T) {
	f := &fleet{}
	inBubble(t, f, func(t *testing.T, s *Scraper) {
		expect := func(when, want string, took time.Duration, times int) {
			t.Helper()
			if got, d := usageOf(t, s, "a"); got != want || d != took {
				t.Errorf("%s: %q in %s, want %q in %s", when, got, d, want, took)
			}
			f.want(t, when, map[string]int{"a": times})
		}
		expect("first", "a 500m 1s", time.Second, 2)
		expect("at once", "a 500m 1s", 0, 2)
		time.Sleep(9 * time.Second)
		expect("while the sample is fresh", "a 500m 1s", 0, 2)
		time.Sleep(6 * time.Second)
		expect("later", "a 500m 15s", 0, 3)
		time.Sleep(119 * time.Second)
		expect("much later", "a 500m 1m59s", 0, 4)
		time.Sleep(time.Hour)
		f.want(t, "idle", map[string]int{"a": 4})
		expect("after an hour", "a 500m 1s", time.Second, 6)
	})
}

func TestRequestsShareScrapes(t *testing.T) {
	f := &fleet{takes: 100 * time.Millisecond}
	inBubble(t, f, func(t *testing.T, s *Scraper) {
		var all sync.WaitGroup
		for i := range 50 {
			all.Go(func() {
				time.Sleep(time.Duration(i) * 10 * time.Millisecond)
				if got, _ := usageOf(t, s, "a", "b"); strings.Count(got, "500m") != 2 {
					t.Errorf("request %d: %s", i, got)
				}
			})
		}
		all.Wait()
		f.want(t, "fifty requests", map[string]int{"a": 2, "b": 2})
	})
}

func TestAKubeletThatDoesNotAnswerDelaysNobodyForLong(t *testing.T) {
	hang := func(r *http.Request) (*http.Response, error) {
		<-r.Context().Done()
		return nil, r.Context().Err()
	}
	f := &fleet{broken: map[string]func(*http.Request) (*http.Response, error){"dead": hang}}
	inBubble(t, f, func(t *testing.T, s *Scraper) {
		if got, took := usageOf(t, s, "a", "dead"); got != "a 500m 1s" || took != patience {
			t.Errorf("first: %q in %s", got, took)
		}
		if got, took := usageOf(t, s, "a", "dead"); got != "a 500m 1s" || took != 0 {
			t.Errorf("then: %q in %s", got, took)
		}
		f.want(t, "then", map[string]int{"a": 2, "dead": 1})
		f.mu.Lock()
		delete(f.broken, "dead")
		f.mu.Unlock()
		time.Sleep(fresh)
		if got, took := usageOf(t, s, "dead"); got != "dead 500m 1s" || took != time.Second {
			t.Errorf("it answers again: %q in %s", got, took)
		}
	})
}

// TestWhatWasTrueIsNotTold: what a node used before its kubelet was gone is no answer.
func TestWhatWasTrueIsNotTold(t *testing.T) {
	f := &fleet{broken: map[string]func(*http.Request) (*http.Response, error){}}
	inBubble(t, f, func(t *testing.T, s *Scraper) {
		usageOf(t, s, "a")
		f.mu.Lock()
		f.broken["a"] = func(*http.Request) (*http.Response, error) { return nil, errors.New("connection refused") }
		f.mu.Unlock()
		time.Sleep(fresh)
		if got, _ := usageOf(t, s, "a"); got != "" {
			t.Error(got)
		}
		f.mu.Lock()
		delete(f.broken, "a")
		f.mu.Unlock()
		if got, took := usageOf(t, s, "a"); got != "a 500m 10s" || took != 0 {
			t.Errorf("it is back: %q in %s", got, took)
		}
	})
}

// TestASlowKubeletDoesNotMakeOthersOld: their samples were fresh when they were taken.
func TestASlowKubeletDoesNotMakeOthersOld(t *testing.T) {
	f := &fleet{}
	slow := func(*http.Request) (*http.Response, error) {
		time.Sleep(patience + time.Second)
		return response(http.StatusOK, "node_cpu_usage_seconds_total 1\nnode_memory_working_set_bytes 5\n"), nil
	}
	f.broken = map[string]func(*http.Request) (*http.Response, error){"slow": slow}
	inBubble(t, f, func(t *testing.T, s *Scraper) {
		got, took := usageOf(t, s, "a", "slow")
		if !strings.HasPrefix(got, "a 500m 1s") || took < fresh {
			t.Errorf("%q in %s", got, took)
		}
	})
}

func TestAKubeletThatFailsIsAskedAgain(t *testing.T) {
	failures := map[string]func(*http.Request) (*http.Response, error){
		"refused":   func(*http.Request) (*http.Response, error) { return nil, errors.New("connection refused") },
		"forbidden": func(*http.Request) (*http.Response, error) { return response(http.StatusForbidden, "no"), nil },
		"garbage":   func(*http.Request) (*http.Response, error) { return response(http.StatusOK, "{"), nil },
		"empty":     func(*http.Request) (*http.Response, error) { return response(http.StatusOK, ""), nil },
	}
	f := &fleet{broken: failures}
	inBubble(t, f, func(t *testing.T, s *Scraper) {
		for range 2 {
			if got, took := usageOf(t, s, "refused", "forbidden", "garbage", "empty"); got != "" || took != 0 {
				t.Errorf("%q in %s", got, took)
			}
		}
		f.want(t, "twice", map[string]int{"refused": 2, "forbidden": 2, "garbage": 2, "empty": 2})
	})
}

func TestARequestThatIsGoneDoesNotWait(t *testing.T) {
	f := &fleet{takes: 3 * time.Second}
	inBubble(t, f, func(t *testing.T, s *Scraper) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		began := time.Now()
		if _, err := s.all(ctx, []*corev1.Node{called("a")}); !errors.Is(err, context.DeadlineExceeded) || time.Since(began) != time.Second {
			t.Errorf("%v after %s", err, time.Since(began))
		}
		// Its scrape is of use to the next one.
		if got, took := usageOf(t, s, "a"); !strings.HasPrefix(got, "a 500m") || took != 5*time.Second {
			t.Errorf("%q in %s", got, took)
		}
	})
}

func TestNothingGoesOnAfterClose(t *testing.T) {
	f := &fleet{broken: map[string]func(*http.Request) (*http.Response, error){"a": func(r *http.Request) (*http.Response, error) {
		<-r.Context().Done()
		return nil, r.Context().Err()
	}}}
	inBubble(t, f, func(t *testing.T, s *Scraper) {
		done := make(chan struct{})
		go func() {
			defer close(done)
			if got, took := usageOf(t, s, "a"); got != "" || took != 0 {
				t.Errorf("%q in %s", got, took)
			}
		}()
		synctest.Wait()
		s.Close()
		<-done
		if got, _ := usageOf(t, s, "a", "b"); got != "" {
			t.Error(got)
		}
		f.want(t, "closed", map[string]int{"a": 1, "b": 0})
	})
}

// TestANodeThatIsReplacedStartsAnew: the counters of two machines have nothing to do with each other.
func TestANodeThatIsReplacedStartsAnew(t *testing.T) {
	f := &fleet{}
	inBubble(t, f, func(t *testing.T, s *Scraper) {
		usageOf(t, s, "a")
		n := called("a")
		n.UID = "another"
		began := time.Now()
		if h := s.of(t.Context(), n); h.samples != 2 || time.Since(began) != time.Second {
			t.Errorf("%+v after %s", h, time.Since(began))
		}
		time.Sleep(longest + time.Minute)
		usageOf(t, s, "b")
		if len(s.nodes) != 1 {
			t.Errorf("%d nodes are remembered", len(s.nodes))
		}
	})
}
