package apiserver

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
)

// TestNobodyChangesWhatIsShared sends valid requests of all sorts to all kinds at once, REQUESTS of them. Objects
// are decoded once and shared by the watch cache, the watches, admission and the answers, in the version in
// which they are stored: the race detector would see anybody who writes into one (make race runs this with a
// million). So would the comparison at the end: what the cache holds is what a new server reads from etcd.
func TestNobodyChangesWhatIsShared(t *testing.T) {
	requests := int64(3000)
	if n, err := strconv.ParseInt(os.Getenv("REQUESTS"), 10, 64); err == nil {
		requests = n
	}
	dir := t.TempDir()
	s, stop := run(t, dir)
	makeAccount(t, s)
	f := newFuzzer(t, s, 1)
	f.endpoints = slices.DeleteFunc(f.endpoints, func(e endpoint) bool {
		return dangerous[e.main()] || !slices.Contains(e.verbs, "update") || !slices.Contains(e.verbs, "get") ||
			e.resource != e.main() && !strings.HasSuffix(e.resource, "/status")
	})
	var left atomic.Int64
	left.Store(requests)
	began := time.Now()
	clients := make([]*mixer, 16)
	var running sync.WaitGroup
	for i := range clients {
		m := &mixer{fuzzer: f, r: rand.New(rand.NewPCG(uint64(i), 3)), answers: map[int]int{}}
		clients[i] = m
		running.Go(func() {
			for left.Add(-1) >= 0 && !t.Failed() {
				m.step(t.Context())
			}
		})
	}
	running.Wait()
	answers := map[int]int{}
	for _, m := range clients {
		for code, n := range m.answers {
			answers[code] += n
		}
		if m.err != nil {
			t.Error(m.err)
		}
	}
	t.Logf("%d requests in %v: %v", requests, time.Since(began).Round(time.Millisecond), answers)
	if answers[http.StatusOK] == 0 || answers[http.StatusCreated] == 0 {
		t.Errorf("nothing was done: %v", answers)
	}
	cached := f.stored(s)
	stop()
	s, stop = run(t, dir)
	defer stop()
	read := f.stored(s)
	if len(cached) == 0 {
		t.Error("nothing is left to compare")
	}
	for path, was := range cached {
		if is := read[path]; is != was {
			t.Errorf("%s: the cache has\n%s\nand etcd\n%s", path, was, is)
		}
	}
}

// mixer is one client.
type mixer struct {
	*fuzzer
	r       *rand.Rand
	answers map[int]int
	err     error
}

func (m *mixer) send(ctx context.Context, method, path, contentType, accept string, body []byte) []byte {
	req, err := http.NewRequestWithContext(ctx, method, m.host+path, strings.NewReader(string(body)))
	if err != nil {
		m.err = errors.Join(m.err, err)
		return nil
	}
	req.Header.Set("Content-Type", contentType)
	req.Header.Set("Accept", accept)
	res, err := m.client.Do(req)
	if err != nil {
		m.err = errors.Join(m.err, fmt.Errorf("%s %s: %w", method, path, err))
		return nil
	}
	answer, err := io.ReadAll(res.Body)
	if err = errors.Join(err, res.Body.Close()); err != nil {
		m.err = errors.Join(m.err, fmt.Errorf("%s %s: %w", method, path, err))
	}
	m.answers[res.StatusCode]++
	if res.StatusCode >= http.StatusInternalServerError {
		m.err = errors.Join(m.err, fmt.Errorf("%s %s: %d %s", method, path, res.StatusCode, answer))
	}
	return answer
}

func (m *mixer) accept() string {
	return pick(m.r, []string{
		"application/json", "application/json", "application/json;as=Table;v=v1;g=meta.k8s.io,application/json", "application/vnd.kubernetes.protobuf,application/json",
		"application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io,application/json",
	})
}

func (m *mixer) step(ctx context.Context) {
	e := pick(m.r, m.endpoints)
	main := e
	main.resource = e.main()
	name := "m-" + strconv.Itoa(m.r.IntN(8))
	dry := pick(m.r, []string{"", "", "", "", "&dryRun=All"})
	label := fmt.Sprintf(`{"metadata":{"labels":{"l%d":"%d"},"annotations":{"a":"%d"}}}`, m.r.IntN(3), m.r.IntN(100), m.r.IntN(100))
	switch m.r.IntN(13) {
	case 0, 1:
		m.send(ctx, http.MethodGet, e.path(name), "", m.accept(), nil)
	case 2, 3:
		from := pick(m.r, []string{"?resourceVersion=0", "?resourceVersion=0&labelSelector=l1", "?limit=3", "?", "?labelSelector=l2%3D7"})
		m.send(ctx, http.MethodGet, main.path("")+from, "", "application/json", nil)
	case 4, 5:
		if obj := m.fresh(e, name); obj != nil && slices.Contains(e.verbs, "create") {
			m.send(ctx, http.MethodPost, main.path("")+"?"+dry, "application/json", m.accept(), toJSON(obj))
		}
	case 6, 7:
		m.update(ctx, e, name, dry)
	case 8:
		m.send(ctx, http.MethodPatch, e.path(name)+"?"+dry, "application/merge-patch+json", m.accept(), []byte(label))
	case 9:
		m.send(ctx, http.MethodPatch, e.path(name)+"?"+dry, "application/json-patch+json", m.accept(), []byte(`[{"op":"add","path":"/metadata/annotations","value":{"j":"1"}}]`))
	case 10:
		if obj := m.fresh(e, name); obj != nil && slices.Contains(e.verbs, "create") {
			q := "?force=true&fieldManager=" + pick(m.r, []string{"one", "two"}) + dry
			m.send(ctx, http.MethodPatch, e.path(name)+q, "application/apply-patch+yaml", "application/json", toJSON(obj))
		}
	case 11:
		if m.r.IntN(3) == 0 {
			m.send(ctx, http.MethodDelete, main.path(name)+"?"+dry, "application/json", "application/json", []byte(`{"gracePeriodSeconds":0}`))
		}
	case 12: // for a second, beside the other clients' requests
		if m.r.IntN(10) == 0 {
			m.send(ctx, http.MethodGet, main.path("")+"?watch=1&timeoutSeconds=1&resourceVersion=0", "", m.accept(), nil)
		}
	}
}

// fresh returns a valid object of the kind, or nil if the table has none.
func (m *mixer) fresh(e endpoint, name string) map[string]any {
	for _, seed := range m.all {
		if seed["kind"] != e.kind || seed["apiVersion"] != e.gv.String() {
			continue
		}
		obj := runtime.DeepCopyJSON(normal(seed))
		setName(obj, name)
		return obj
	}
	return nil
}

func (m *mixer) update(ctx context.Context, e endpoint, name, dry string) {
	obj := map[string]any{}
	if err := json.Unmarshal(m.send(ctx, http.MethodGet, e.path(name), "", "application/json", nil), &obj); err != nil || obj["kind"] != e.kind {
		return
	}
	meta, ok := obj["metadata"].(map[string]any)
	if !ok {
		return
	}
	meta["annotations"] = map[string]any{"u": strconv.Itoa(m.r.IntN(1000))}
	m.send(ctx, http.MethodPut, e.path(name)+"?"+dry, "application/json", m.accept(), toJSON(obj))
}

// stored returns the objects that clients made, by path.
func (f *fuzzer) stored(s *Server) map[string]string {
	f.t.Helper()
	cfg := s.ClientConfig("admin", "system:masters")
	client, err := rest.HTTPClientFor(cfg)
	if err != nil {
		f.t.Fatal(err)
	}
	list := func(e endpoint) (items []json.RawMessage) {
		f.t.Helper()
		eventually(f.t, func() error { // kinds of users are served a moment after the start
			req, err := http.NewRequestWithContext(f.t.Context(), http.MethodGet, cfg.Host+e.path(""), nil)
			if err != nil {
				return err
			}
			res, err := client.Do(req)
			if err != nil {
				return err
			}
			defer func() { _ = res.Body.Close() }()
			var list struct{ Items []json.RawMessage }
			if err := json.NewDecoder(res.Body).Decode(&list); err != nil || res.StatusCode != http.StatusOK {
				return fmt.Errorf("%s: %d, %w", e.path(""), res.StatusCode, err)
			}
			items = list.Items
			return nil
		})
		return items
	}
	out := map[string]string{}
	for _, e := range f.endpoints {
		if e.resource != e.main() {
			continue
		}
		for _, item := range list(e) {
			var o struct{ Metadata struct{ Name string } }
			if err := json.Unmarshal(item, &o); err != nil {
				f.t.Fatal(err)
			}
			if strings.HasPrefix(o.Metadata.Name, "m-") {
				out[e.path(o.Metadata.Name)] = string(item)
			}
		}
	}
	return out
}
