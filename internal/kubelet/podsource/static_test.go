package podsource

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"

	"wherry.dev/test/leaks"
)

func TestMain(m *testing.M) { os.Exit(leaks.Watch(m).Run()) }

const manifest = `
apiVersion: v1
kind: Pod
metadata: {name: web}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - {name: c, image: "busybox:latest", imagePullPolicy: IfNotPresent, command: [sleep, "NUM"]}
`

func TestFiles(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "manifests")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	got := make(chan []*v1.Pod, 10)
	done := make(chan error, 1)
	ctx, cancel := context.WithCancel(t.Context())
	files := Manifests{Path: dir, Node: "n1", Every: time.Hour, Set: func(p []*v1.Pod) { got <- p }, Bad: func(string, *v1.Pod, error) {}}
	go func() { done <- files.Follow(ctx) }()
	next := func(n int) []*v1.Pod {
		t.Helper()
		for {
			select {
			case p := <-got:
				if len(p) == n {
					return p
				}
			case <-time.After(time.Minute):
				t.Fatalf("never %d pods", n)
			}
		}
	}
	next(0)
	write := func(name, text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("web.yaml", manifest)
	first := next(1)[0]
	if first.Name != "web-n1" || first.Spec.RestartPolicy != v1.RestartPolicyAlways || first.Spec.Containers[0].TerminationMessagePath == "" {
		t.Errorf("pod: %+v", first)
	}
	write("broken.yaml", "kind: Pod\napiVersion: v1\nspec: [")
	write(".swp", manifest)
	if p := next(1)[0]; p.UID != first.UID {
		t.Error("a broken neighbour changed the pod")
	}
	if err := os.Remove(filepath.Join(dir, "web.yaml")); err != nil {
		t.Fatal(err)
	}
	next(0)
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func FuzzStaticPod(f *testing.F) {
	f.Add([]byte(manifest))
	f.Add([]byte(`{"kind":"Pod","apiVersion":"v1","metadata":{"name":"x"},"spec":{"containers":[{"name":"c"}]}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		p, err := StaticPod(data, "n1", "file:x", time.Time{})
		if err == nil && (p.UID == "" || p.Name == "" || p.Spec.NodeName != "n1") {
			t.Errorf("%+v", p)
		}
	})
}

func TestURL(t *testing.T) {
	var mu sync.Mutex
	answer, code, asked := "", http.StatusOK, 0
	say := func(text string, status int) {
		mu.Lock()
		defer mu.Unlock()
		answer, code = text, status
	}
	server := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		asked++
		if r.Header.Get("X-Token") != "secret" {
			rw.WriteHeader(http.StatusUnauthorized)
			return
		}
		rw.WriteHeader(code)
		_, _ = rw.Write([]byte(answer))
	}))
	defer server.Close()
	say(manifest, http.StatusOK)
	got := make(chan []*v1.Pod, 10)
	done := make(chan error, 1)
	ctx, cancel := context.WithCancel(t.Context())
	header := http.Header{"x-token": {"secret"}}
	go func() {
		done <- URL(ctx, server.URL, header, "n1", time.Millisecond, func(p []*v1.Pod) { got <- p })
	}()
	one := <-got
	if len(one) != 1 || one[0].Name != "web-n1" || one[0].Annotations["kubernetes.io/config.source"] != "http" || len(one[0].Spec.Tolerations) != 0 {
		t.Errorf("pods: %+v", one)
	}
	// Neither an error nor nonsense removes anything.
	for _, bad := range []string{"nonsense: [", "kind: Pod\napiVersion: v1\nmetadata: {name: a}\nspec: {serviceAccountName: x, containers: [{name: c}]}"} {
		for _, status := range []int{http.StatusOK, http.StatusInternalServerError} {
			say(bad, status)
			mu.Lock()
			from := asked
			mu.Unlock()
			for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
				mu.Lock()
				enough := asked >= from+2
				mu.Unlock()
				if enough {
					break
				}
			}
		}
	}
	pod := func(name string) string {
		return `{"metadata":{"name":"` + name + `"},"spec":{"containers":[{"name":"c","image":"i"}]}}`
	}
	say(`{"kind":"PodList","apiVersion":"v1","items":[`+pod("a")+","+pod("b")+"]}", http.StatusOK)
	if two := <-got; len(two) != 2 || two[0].Name != "a-n1" || two[1].Name != "b-n1" {
		t.Errorf("list: %+v", two)
	}
	say("", http.StatusOK)
	if none := <-got; len(none) != 0 {
		t.Errorf("nothing: %+v", none)
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func TestStaticPodsNeedNoAPIServer(t *testing.T) {
	for spec, what := range map[string]string{
		`serviceAccountName: x`:                                             "serviceaccounts",
		`imagePullSecrets: [{name: x}]`:                                     "secrets",
		`volumes: [{name: v, configMap: {name: x}}]`:                        "configmaps",
		`volumes: [{name: v, secret: {secretName: x}}]`:                     "secrets",
		`volumes: [{name: v, projected: {sources: [{secret: {name: x}}]}}]`: "secrets",
		`resourceClaims: [{name: r, resourceClaimName: x}]`:                 "resourceclaims",
		`volumes: [{name: v, persistentVolumeClaim: {claimName: x}}]`:       "persistentvolumeclaims",
		`volumes: [{name: v, csi: {driver: x}}]`:                            "csidrivers (via CSI volumes)",
		`volumes: [{name: v, azureFile: {secretName: x, shareName: sh}}]`:   "secrets",
	} {
		_, err := StaticPod([]byte(manifest+"  "+spec+"\n"), "n1", "file:x", time.Now())
		if err == nil || err.Error() != "static pods may not reference "+what {
			t.Errorf("%s: %v", spec, err)
		}
	}
}

// TestManifests: what the API server would refuse never runs, what it would fill in is there, and
// what a newer one may know is not refused.
func TestManifests(t *testing.T) {
	for spec, want := range map[string]string{
		`ephemeralContainers: [{name: e, image: i}]`:                                     "spec.ephemeralContainers: Forbidden: cannot be set on create",
		`initContainers: [{name: c, image: i}]`:                                          "Duplicate value: \"c\"",
		`initContainers: [{name: i}]`:                                                    "spec.initContainers[0].image: Required value",
		`restartPolicy: Sometimes`:                                                       "spec.restartPolicy: Unsupported value",
		`volumes: [{name: "a b", emptyDir: {}}]`:                                         "spec.volumes[0].name: Invalid value",
		`volumes: [{name: v, projected: {sources: [{serviceAccountToken: {path: x}}]}}]`: "must not be specified when serviceAccountName is not set",
		`aFieldOfTomorrow: true`:                                                         "",
		`tolerations: [{operator: Exists, effect: NoExecute}]`:                           "",
	} {
		p, err := StaticPod([]byte(manifest+"  "+spec+"\n"), "n1", "file:x", time.Now())
		if want != "" {
			if err == nil || !strings.HasPrefix(err.Error(), "invalid pod: ") || !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %v", spec, err)
			}
			continue
		}
		if err != nil || p.Name != "web-n1" || len(p.Spec.Tolerations) != 1 || p.Spec.Containers[0].TerminationMessagePolicy != v1.TerminationMessageReadFile {
			t.Errorf("%s: %v, %+v", spec, err, p)
		}
	}
	for text, want := range map[string]string{
		strings.Replace(manifest, "name: web", "name: Web", 1):      "invalid pod: metadata.name: Invalid value: \"Web-n1\"",
		strings.Replace(manifest, "name: web", "labels: {a: b}", 1): "invalid pod: name is needed for the pod",
		strings.Replace(manifest, "Pod", "Service", 1):              "invalid pod",
		strings.Replace(manifest, "Pod", "Pood", 1):                 "couldn't parse as pod(",
		"": "couldn't parse as pod(",
	} {
		if _, err := StaticPod([]byte(text), "n1", "file:x", time.Now()); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%q: %v", text, err)
		}
	}
}

// The error of a YAML library has a line, or none; without one, the message used to end in a space.
func TestManifestThatIsNoYAML(t *testing.T) {
	for text, want := range map[string]string{
		"a: [1\nb: 2\n": "couldn't parse as pod(it is not YAML: line 1), please check config file",
		"\x00":          "couldn't parse as pod(it is not YAML), please check config file",
	} {
		if _, err := StaticPod([]byte(text), "n1", "file:x", time.Now()); err == nil || err.Error() != want {
			t.Errorf("%q: %v", text, err)
		}
	}
}

// TestFilesThatChange in the ways that editors, tools and accidents change them.
func TestFilesThatChange(t *testing.T) {
	root := t.TempDir()
	dir, elsewhere := filepath.Join(root, "manifests"), filepath.Join(root, "elsewhere.yaml")
	ok := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	write := func(path, num string) {
		t.Helper()
		ok(os.WriteFile(path, []byte(strings.Replace(manifest, "NUM", num, 1)), 0o600))
	}
	got := make(chan []*v1.Pod)
	done := make(chan error, 1)
	ctx, cancel := context.WithCancel(t.Context())
	files := Manifests{
		Path: dir + "/", Node: "n1", Every: time.Millisecond, Bad: func(string, *v1.Pod, error) {},
		Set: func(p []*v1.Pod) {
			select {
			case got <- p:
			case <-ctx.Done():
			}
		},
	}
	go func() { done <- files.Follow(ctx) }()
	// next waits until the pods are exactly those that sleep for these numbers of seconds, and stay so.
	next := func(want ...string) (last []*v1.Pod) {
		t.Helper()
		for same, deadline := 0, time.Now().Add(time.Minute); same < 3; {
			if time.Now().After(deadline) {
				t.Fatalf("never %q: %+v", want, last)
			}
			last = <-got
			var nums []string
			for _, p := range last {
				nums = append(nums, p.Spec.Containers[0].Command[1])
			}
			if same++; !slices.Equal(nums, want) {
				same = 0
			}
		}
		return last
	}
	next() // the directory does not exist yet
	ok(os.Mkdir(dir, 0o700))
	next()
	web := filepath.Join(dir, "web.yaml")
	write(web, "1")
	first := next("1")[0]
	ok(os.Truncate(web, 20)) // somebody writes it in two steps
	next("1")
	write(web, "2")
	if p := next("2")[0]; p.UID == first.UID {
		t.Error("the UID does not follow the content")
	}
	write(filepath.Join(dir, ".web.yaml.swp"), "3")
	write(web+"~", "3")
	ok(os.Mkdir(filepath.Join(dir, "folder.yaml"), 0o700))
	next("2")
	ok(os.Rename(web, filepath.Join(dir, "renamed.yaml")))
	next("2")
	write(web, "3") // of two with the same name, the last counts
	next("3")
	ok(os.Remove(web))
	next("2")
	ok(os.Remove(filepath.Join(dir, "renamed.yaml")))
	next()
	write(elsewhere, "4")
	ok(os.Symlink(elsewhere, web))
	next("4")
	write(elsewhere, "5") // the directory gives no event for it
	next("5")
	ok(os.Remove(elsewhere))
	next()
	write(elsewhere, "6")
	next("6")
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// A manifest that was taken away and put back used to change nothing if that was done before the directory was read:
// whoever wants to restart a static pod does this.
func TestAManifestThatIsPutBackWasAway(t *testing.T) {
	dir := t.TempDir()
	web, away := filepath.Join(dir, "web.yaml"), filepath.Join(t.TempDir(), "web.yaml")
	write := func() error { return os.WriteFile(web, []byte(manifest), 0o600) }
	if err := write(); err != nil {
		t.Fatal(err)
	}
	got := make(chan int, 100)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	files := Manifests{
		Path: dir, Node: "n1", Every: time.Hour, Bad: func(string, *v1.Pod, error) {},
		Set: func(p []*v1.Pod) { got <- len(p) },
	}
	done := make(chan error, 1)
	go func() { done <- files.Follow(ctx) }()
	await := func(n int) {
		t.Helper()
		for {
			select {
			case have := <-got:
				if have == n {
					return
				}
			case <-time.After(10 * time.Second):
				t.Fatalf("never %d pods", n)
			}
		}
	}
	await(1)
	for name, move := range map[string]func() error{
		"deleted and written again": func() error { return errors.Join(os.Remove(web), write()) },
		"moved away and back":       func() error { return errors.Join(os.Rename(web, away), os.Rename(away, web)) },
	} {
		if err := move(); err != nil {
			t.Fatal(name, err)
		}
		await(0)
		await(1)
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// TestManifestThatIsNoManifest: a link to root's files used to show their text in logs and events,
// and a pipe used to keep static pods from ever being read again.
func TestManifestThatIsNoManifest(t *testing.T) {
	dir, secret := t.TempDir(), filepath.Join(t.TempDir(), "shadow")
	for name, text := range map[string]string{
		"shadow": "root:$6$hunter2:19000:0:99999:7:::\ndaemon:*:19000\n", "word": "hunter2", "number": "123: hunter2\n456: [hunter2",
		"kind": "apiVersion: hunter2\nkind: hunter2\n", "json": `{"hunter2": 1, hunter2}`, "text": "hunter2: `hunter2`\n- hunter2\n",
	} {
		if err := os.WriteFile(secret, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := StaticPod([]byte(text), "n1", "file:x", time.Now())
		if err == nil || strings.Contains(err.Error(), "hunter2") || strings.Contains(err.Error(), "123") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := unix.Mkfifo(filepath.Join(dir, "a-pipe.yaml"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "b.yaml"), []byte(manifest), 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var bad string
	var got []*v1.Pod
	files := Manifests{Path: dir, Node: "n1", Every: time.Hour, Set: func(p []*v1.Pod) { got = p },
		Bad: func(file string, _ *v1.Pod, err error) { bad = filepath.Base(file) + ": " + err.Error(); cancel() }}
	if err := files.Follow(ctx); err != nil {
		t.Fatal(err)
	}
	if len(got) != 1 || !strings.Contains(bad, "a-pipe.yaml: ") || !strings.HasSuffix(bad, "is not a regular file") {
		t.Errorf("%d pods; told %q", len(got), bad)
	}
}

// TestUIDOfAManifest: it becomes part of the names of directories and groups, which the end of the
// pod removes.
func TestUIDOfAManifest(t *testing.T) {
	for uid, ok := range map[string]bool{
		"../../../../etc": false, "..": false, ".": false, "a/b": false, "-x": false, "a b": false, "*": false, "a\\0b": false, strings.Repeat("u", 129): false,
		"1b9d6bcd-bbfd-4b2d-9b5d-ab8dfbbd4bed": true, "x_1.y": true,
	} {
		text := strings.Replace(manifest, "name: web", `name: web, uid: "`+uid+`"`, 1)
		p, err := StaticPod([]byte(text), "n1", "file:x", time.Now())
		if ok != (err == nil) || !ok && !strings.Contains(err.Error(), "metadata.uid") {
			t.Errorf("%q: %+v, %v", uid, p, err)
		}
	}
}
