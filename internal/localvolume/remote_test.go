package localvolume

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	ktesting "k8s.io/client-go/testing"
	"k8s.io/component-helpers/storage/volume"

	"wherry.dev/internal/api/cluster"
)

// kubelet answers as the API server does for the kubelet of node n2.
type kubelet struct{ serves http.Handler }

func (k kubelet) RoundTrip(r *http.Request) (*http.Response, error) {
	path, ok := strings.CutPrefix(r.URL.Path, "/api/v1/nodes/n2/proxy")
	if !ok {
		return nil, errors.New("no node: " + r.URL.Path)
	}
	if err := r.Context().Err(); err != nil {
		return nil, err
	}
	r = r.Clone(r.Context())
	r.URL.Path = path
	w := httptest.NewRecorder()
	k.serves.ServeHTTP(w, r)
	return w.Result(), nil
}

func remote(root string, h http.Handler) Remote {
	return Remote{Node: "n2", Folder: root, Client: &http.Client{Transport: kubelet{h}}, Server: "http://server/"}
}

// pair is a world with a second node, whose disk is asked for.
func pair(t *testing.T, root string, objs ...runtime.Object) (w *world, theirs string) {
	w = newWorld(t, root, append(objs, newNode("n2", "n2"))...)
	theirs = filepath.Join(filepath.Dir(root), "theirs")
	l := w.local(theirs)
	w.disk = func(n *v1.Node) Disk {
		if n.Annotations[cluster.AnnotationVolumes] == cluster.NoVolumes {
			return nil
		}
		return remote(theirs, l)
	}
	return w, theirs
}

func onNode(name string) func(*v1.PersistentVolumeClaim) {
	return func(c *v1.PersistentVolumeClaim) { c.Annotations[volume.AnnSelectedNode] = name }
}

// change changes the second node.
func (w *world) change(f func(*v1.Node)) {
	w.t.Helper()
	n, err := w.CoreV1().Nodes().Get(w.t.Context(), "n2", metav1.GetOptions{})
	if err == nil {
		f(n)
		_, err = w.CoreV1().Nodes().Update(w.t.Context(), n, metav1.UpdateOptions{})
	}
	if err != nil {
		w.t.Fatal(err)
	}
	w.settle()
}

func ready(s v1.ConditionStatus) func(*v1.Node) {
	return func(n *v1.Node) { n.Status.Conditions[0].Status = s }
}

// rooms are what each node has room for.
func (w *world) rooms() string {
	w.t.Helper()
	list, err := w.StorageV1().CSIStorageCapacities("kube-system").List(w.t.Context(), metav1.ListOptions{})
	if err != nil {
		w.t.Fatal(err)
	}
	out := map[string]string{}
	for _, c := range list.Items {
		out[c.OwnerReferences[0].Name] = c.Capacity.String()
	}
	return strings.TrimSpace(out["n1"] + " " + out["n2"])
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// TestAVolumeElsewhere lives on the disk of another node, which may be away when it is needed, and when it is not any more.
func TestAVolumeElsewhere(t *testing.T) {
	play(t, func(t *testing.T, root string) {
		w, theirs := pair(t, root)
		if err := os.Mkdir(filepath.Join(theirs, "pvc-left"), 0o700); err != nil {
			t.Fatal(err)
		}
		w.run()
		defer func() { w.stop() }()
		if got := w.rooms(); got != "9Gi 9Gi" {
			t.Errorf("rooms %s", got)
		}
		if exists(filepath.Join(theirs, "pvc-left")) {
			t.Error("what a kill has left is there")
		}
		w.change(ready(v1.ConditionUnknown))
		w.create(newClaim("c", onNode("n2")))
		if w.volume("pvc-uid-c") != nil || w.rooms() != "9Gi 9Gi" || !strings.HasSuffix(w.said(), `StorageClass "local": node n2 is not ready`) {
			t.Errorf("volume %v, rooms %s, said %s", w.volume("pvc-uid-c"), w.rooms(), w.said())
		}
		w.change(ready(v1.ConditionTrue))
		pv, dir := w.volume("pvc-uid-c"), filepath.Join(theirs, "pvc-uid-c")
		if pv == nil || pv.Spec.Local.Path != dir || hostIn(pv) != "n2" || !exists(dir) || w.there("pvc-uid-c") {
			t.Fatalf("%+v %s", pv, w.said())
		}
		if err := os.WriteFile(filepath.Join(dir, "f"), nil, 0o600); err != nil {
			t.Fatal(err)
		}
		w.stop()
		w.run() // another server leads
		w.change(ready(v1.ConditionFalse))
		w.release("c")
		if w.volume("pvc-uid-c") == nil || !exists(dir) {
			t.Error("removed without its node")
		}
		if !strings.Contains(w.said(), "VolumeFailedDelete node n2 is not ready") {
			t.Error(w.said())
		}
		w.change(ready(v1.ConditionTrue))
		if w.volume("pvc-uid-c") != nil || exists(dir) {
			t.Errorf("left: %+v %s", w.volume("pvc-uid-c"), w.said())
		}
		before := len(w.Actions())
		time.Sleep(time.Hour)
		w.settle()
		if n := len(w.Actions()) - before; n != 0 {
			t.Errorf("%d calls while nothing happens", n)
		}
		w.change(func(n *v1.Node) { n.Annotations = map[string]string{cluster.AnnotationVolumes: cluster.NoVolumes} })
		if got := w.rooms(); got != "9Gi" {
			t.Errorf("rooms %s after it offers none", got)
		}
	})
}

// TestANodeWithoutRoom gives the claim back, and one that grows waits.
func TestANodeWithoutRoom(t *testing.T) {
	play(t, func(t *testing.T, root string) {
		w, _ := pair(t, root)
		w.free = 1536 << 20
		w.run()
		defer w.stop()
		w.create(newClaim("c", onNode("n2")))
		if said := w.said(); said != `ProvisioningFailed failed to provision volume with StorageClass "local": node n2 has room for 512Mi, and the claim asks for 1Gi` {
			t.Error(said)
		}
		claim, err := w.CoreV1().PersistentVolumeClaims("ns").Get(t.Context(), "c", metav1.GetOptions{})
		if err != nil || claim.Annotations[volume.AnnSelectedNode] != "" {
			t.Errorf("%v, %v", claim.Annotations, err)
		}
	})
}

// TestTheOneThatLedBefore tidies up while this one makes a volume: the directory is there in the end.
func TestTheOneThatLedBefore(t *testing.T) {
	play(t, func(t *testing.T, root string) {
		w, theirs := pair(t, root)
		dir := filepath.Join(theirs, "pvc-uid-c")
		w.PrependReactor("create", "persistentvolumes", func(ktesting.Action) (bool, runtime.Object, error) {
			// The other one does not know of the claim, and has found the directory and no volume.
			disk := w.disk(newNode("n2", "n2"))
			list, err := disk.List(t.Context())
			if err != nil || len(list) != 1 {
				t.Errorf("%v, %v", list, err)
				return false, nil, nil
			}
			if _, err := disk.Tidy(t.Context(), list[0]); err != nil || exists(dir) {
				t.Errorf("not removed: %v", err)
			}
			return false, nil, nil
		})
		w.run()
		defer w.stop()
		w.create(newClaim("c", onNode("n2")))
		if w.volume("pvc-uid-c") == nil || !exists(dir) {
			t.Error("the volume has no directory")
		}
	})
	root := filepath.Join(t.TempDir(), "v")
	l, err := NewLocal(root, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Make(t.Context(), "pvc-1", 1); err != nil {
		t.Fatal(err)
	}
	list, err := l.List(t.Context())
	if err != nil || len(list) != 1 {
		t.Fatalf("%v, %v", list, err)
	}
	if err := l.Make(t.Context(), "pvc-1", 1); err != nil {
		t.Fatal(err)
	}
	if _, err := l.Tidy(t.Context(), list[0]); err != nil || !exists(filepath.Join(root, "pvc-1")) {
		t.Errorf("what was made once more since is removed: %v", err)
	}
}

// TestANodeThatHasLeft takes its disk along: volumes that nobody wants are let go of after a while.
func TestANodeThatHasLeft(t *testing.T) {
	play(t, func(t *testing.T, root string) {
		w, theirs := pair(t, root)
		w.run()
		defer w.stop()
		for _, name := range []string{"c", "kept"} {
			w.create(newClaim(name, onNode("n2")))
		}
		node, err := w.CoreV1().Nodes().Get(t.Context(), "n2", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		leave := func() {
			if err := w.CoreV1().Nodes().Delete(t.Context(), "n2", metav1.DeleteOptions{}); err != nil {
				t.Fatal(err)
			}
			w.settle()
		}
		leave()
		w.release("c")
		time.Sleep(gonePatience / 2)
		if _, err := w.CoreV1().Nodes().Create(t.Context(), node, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		w.settle()
		if w.volume("pvc-uid-c") != nil || exists(filepath.Join(theirs, "pvc-uid-c")) {
			t.Errorf("it came back in time: %s", w.said())
		}
		w.create(newClaim("d", onNode("n2")))
		leave()
		w.release("d")
		if w.volume("pvc-uid-d") == nil {
			t.Error("let go of at once")
		}
		time.Sleep(gonePatience)
		w.settle()
		if w.volume("pvc-uid-d") != nil || !strings.Contains(w.said(), "VolumeLeftBehind node n2 has left the cluster: what is on its disk ("+theirs+"/pvc-uid-d) stays there") {
			t.Errorf("%+v %s", w.volume("pvc-uid-d"), w.said())
		}
		if pv := w.volume("pvc-uid-kept"); pv == nil || pv.DeletionTimestamp != nil || !exists(filepath.Join(theirs, "pvc-uid-kept")) {
			t.Error("a volume whose claim is there is gone")
		}
	})
}

// TestANodeThatCallsItselfAnother gets nothing of the other's, and the other one is not held up.
func TestANodeThatCallsItselfAnother(t *testing.T) {
	play(t, func(t *testing.T, root string) {
		w, theirs := pair(t, root, newNode("n3", "n2"), newNode("n4", "host-1"))
		w.run()
		defer w.stop()
		w.create(newClaim("c", onNode("n2")))
		w.release("c")
		if w.volume("pvc-uid-c") != nil || exists(filepath.Join(theirs, "pvc-uid-c")) {
			t.Errorf("the real one is held up: %s", w.said())
		}
		w.create(newClaim("d", onNode("n3")))
		w.create(newClaim("e", onNode("n1"))) // its label is another name, which n4 has, too
		if w.volume("pvc-uid-d") != nil || w.volume("pvc-uid-e") != nil || strings.Count(w.said(), "have the same label kubernetes.io/hostname") != 2 {
			t.Error(w.said())
		}
	})
}

// TestWhatNodesAreAsked for is nothing but their volumes.
func TestWhatNodesAreAsked(t *testing.T) {
	root := filepath.Join(t.TempDir(), "v")
	l, err := NewLocal(root, nil)
	if err != nil {
		t.Fatal(err)
	}
	outside := filepath.Join(filepath.Dir(root), "outside")
	if err := errors.Join(os.MkdirAll(filepath.Join(outside, "pvc-1"), 0o755), os.Mkdir(filepath.Join(root, "else"), 0o700)); err != nil {
		t.Fatal(err)
	}
	for _, ask := range []struct{ method, path, want string }{
		{"PUT", "/pvc-1?size=1", ""},
		{"PUT", "/pvc-1?size=x", `size "x" is not a number of bytes`},
		{"PUT", "/pvc-1?size=-1", "is not a number of bytes"},
		{"PUT", "", "name a volume"},
		{"PATCH", "/pvc-1", "PATCH means nothing here"},
		{"DELETE", "/else", "is not the name of a local volume"},
		{"DELETE", "/pvc-..%2f..%2foutside%2fpvc-1", "is not the name of a local volume"},
		{"DELETE", "/..%2foutside", "is not the name of a local volume"},
		{"PUT", "/pvc-%00?size=1", "is not the name of a local volume"},
		{"DELETE", "/pvc-gone", ""},
	} {
		w := httptest.NewRecorder()
		l.ServeHTTP(w, httptest.NewRequest(ask.method, cluster.VolumesPath+ask.path, http.NoBody))
		if body := w.Body.String(); (w.Code == http.StatusOK) != (ask.want == "") || !strings.Contains(strings.ReplaceAll(body, `\"`, `"`), ask.want) {
			t.Errorf("%s %s: %d %s", ask.method, ask.path, w.Code, body)
		}
	}
	if !exists(filepath.Join(outside, "pvc-1")) || !exists(filepath.Join(root, "else")) || !exists(filepath.Join(root, "pvc-1")) {
		t.Error("something else is gone")
	}
	for _, name := range []string{"../outside", "pvc-../outside", "else", ""} {
		_, err := l.Tidy(t.Context(), Directory{Name: name})
		if err == nil || l.Remove(t.Context(), name) == nil || l.Make(t.Context(), name, 1) == nil || l.Limit(t.Context(), name, 1) == nil {
			t.Errorf("%q is taken", name)
		}
	}
}

// TestErrorsOfNodes are known again on the server, and what a node says has limits.
func TestErrorsOfNodes(t *testing.T) {
	root := filepath.Join(t.TempDir(), "v")
	l, err := NewLocal(root, nil)
	if err != nil {
		t.Fatal(err)
	}
	r, at := remote(root, l), t.TempDir()
	if err := errors.Join(r.Make(t.Context(), "pvc-1", 1<<20), r.Limit(t.Context(), "pvc-1", 2<<20), unix.Mount(filepath.Join(root, "pvc-1"), at, "", unix.MS_BIND, "")); err != nil {
		t.Fatal(err)
	}
	err = r.Remove(t.Context(), "pvc-1")
	if !errors.Is(err, ErrInUse) || err.Error() != "the volume is in use: it is still mounted at "+at {
		t.Errorf("in use: %v", err)
	}
	if err := errors.Join(unix.Unmount(at, 0), r.Remove(t.Context(), "pvc-1")); err != nil || exists(filepath.Join(root, "pvc-1")) {
		t.Error(err)
	}
	says := func(code int, text string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(code)
			_, _ = io.WriteString(w, text)
		}
	}
	unfinished := func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusGatewayTimeout)
		_, _ = io.WriteString(w, `{"reason":"Timeout","message":"`+ErrUnfinished.Error()+`"}`)
	}
	if err := remote(root, http.HandlerFunc(unfinished)).Remove(t.Context(), "pvc-1"); !errors.Is(err, ErrUnfinished) {
		t.Errorf("unfinished: %v", err)
	}
	for want, h := range map[string]http.HandlerFunc{
		"node n2: 404 Not Found": says(404, "404 page not found"), // an older kubelet, or upstream's
		"unexpected end of JSON": says(200, strings.Repeat(" ", 2*mostAnswer)),
		"invalid character":      says(200, "<html>"),
	} {
		if _, err := remote(root, h).Free(t.Context()); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", want, err)
		}
	}
	if free, err := remote(root, says(200, `{"free":-5}`)).Free(t.Context()); free != 0 || err != nil {
		t.Errorf("%d, %v", free, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := r.Make(ctx, "pvc-1", 1); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}
