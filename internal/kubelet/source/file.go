package source

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/fsnotify/fsnotify"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/klog/v2"
	"sigs.k8s.io/yaml"

	"wherry.dev/internal/kubelet/podconfig"
)

// maxManifest is the size of a manifest that is read.
const maxManifest = 10 << 20

// Files reads the manifests in a folder, or one file, and again whenever the
// kernel tells of a change. set gets all static pods that are there now; a file
// that cannot be read keeps the pod that it last described.
func Files(ctx context.Context, path, node string, set func([]*v1.Pod)) error {
	w, err := fsnotify.NewWatcher()
	if err != nil {
		return fmt.Errorf("watch static pods: %w", err)
	}
	defer func() { _ = w.Close() }()
	f := &files{path: path, node: node, last: map[string]*v1.Pod{}}
	watched := f.watch(ctx, w)
	set(f.read(ctx))
	for {
		// A folder that is not there yet cannot be watched: look for it now and then.
		var again <-chan time.Time
		var timer *time.Timer
		if !watched {
			timer = time.NewTimer(20 * time.Second)
			again = timer.C
		}
		select {
		case <-ctx.Done():
			return nil
		case ev, ok := <-w.Events:
			if !ok {
				return errors.New("watch of static pods ended")
			}
			if ev.Name == path && ev.Has(fsnotify.Remove|fsnotify.Rename) {
				watched = false
			}
		case err := <-w.Errors:
			klog.FromContext(ctx).Error(err, "Watch of static pods", "path", path)
		case <-again:
		}
		if timer != nil {
			timer.Stop()
		}
		if !watched {
			watched = f.watch(ctx, w)
		}
		set(f.read(ctx))
	}
}

type files struct {
	path, node string
	last       map[string]*v1.Pod // by file
}

// watch watches the folder; for a single file, the folder it is in, since editors
// replace files.
func (f *files) watch(ctx context.Context, w *fsnotify.Watcher) bool {
	dir := f.path
	if info, err := os.Stat(f.path); err == nil && !info.IsDir() {
		dir = filepath.Dir(f.path)
	}
	if err := w.Add(dir); err != nil {
		klog.FromContext(ctx).V(2).Info("Static pods cannot be watched yet", "path", f.path, "err", err)
		return false
	}
	return true
}

// read returns the pods of all manifests.
func (f *files) read(ctx context.Context) []*v1.Pod {
	log := klog.FromContext(ctx)
	names, err := f.names()
	if err != nil {
		if !errors.Is(err, fs.ErrNotExist) {
			log.Error(err, "Static pods cannot be listed", "path", f.path)
		}
		names = nil
	}
	now := make(map[string]*v1.Pod, len(names))
	var out []*v1.Pod
	for _, name := range names {
		pod, err := readManifest(name, f.node)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			log.Error(err, "Static pod cannot be read", "file", name)
			pod = f.last[name]
		}
		if old := f.last[name]; old != nil && pod != nil && unchanged(old, pod) {
			pod = old // seen before: its time of first sight stays
		}
		if pod != nil {
			now[name] = pod
			out = append(out, pod)
		}
	}
	f.last = now
	return out
}

// unchanged tells whether a manifest says what it said before.
func unchanged(old, pod *v1.Pod) bool {
	return old.UID == pod.UID && equality.Semantic.DeepEqual(old.Spec, pod.Spec) && maps.Equal(old.Labels, pod.Labels)
}

// names lists the manifests, without what editors and package managers leave.
func (f *files) names() ([]string, error) {
	info, err := os.Stat(f.path)
	if err != nil {
		return nil, err
	}
	if !info.IsDir() {
		return []string{f.path}, nil
	}
	entries, err := os.ReadDir(f.path)
	if err != nil {
		return nil, err
	}
	var out []string
	for _, e := range entries {
		name := filepath.Join(f.path, e.Name())
		info, err := os.Stat(name)
		if err != nil || !info.Mode().IsRegular() || strings.HasPrefix(e.Name(), ".") || strings.HasSuffix(e.Name(), "~") {
			continue
		}
		out = append(out, name)
	}
	return out, nil
}

func readManifest(name, node string) (*v1.Pod, error) {
	info, err := os.Stat(name)
	if err != nil {
		return nil, err
	}
	if info.Size() > maxManifest {
		return nil, fmt.Errorf("%s is larger than %d bytes", name, maxManifest)
	}
	data, err := os.ReadFile(name)
	if err != nil {
		return nil, err
	}
	pod, err := StaticPod(data, node, "file:"+name, time.Now())
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return pod, nil
}

// StaticPod decodes a manifest and makes of it the pod that the node runs: named
// after the node, with a UID that follows from content, node and origin.
func StaticPod(data []byte, node, origin string, now time.Time) (*v1.Pod, error) {
	pod := &v1.Pod{}
	if err := yaml.UnmarshalStrict(data, pod); err != nil {
		return nil, fmt.Errorf("not a pod: %w", err)
	}
	if pod.Kind != "Pod" || pod.APIVersion != "v1" {
		return nil, fmt.Errorf("kind %q of %q is not a Pod of v1", pod.Kind, pod.APIVersion)
	}
	return makeStatic(pod, node, origin, now)
}

// makeStatic makes a static pod of what was read.
func makeStatic(pod *v1.Pod, node, origin string, now time.Time) (*v1.Pod, error) {
	if len(pod.Spec.Containers) == 0 {
		return nil, errors.New("spec.containers is empty")
	}
	if pod.Name == "" {
		return nil, errors.New("metadata.name is missing")
	}
	if what := apiReference(pod); what != "" {
		return nil, fmt.Errorf("static pods may not reference %s", what)
	}
	pod.Status = v1.PodStatus{}
	hash, err := staticHash(pod, node, origin)
	if err != nil {
		return nil, err
	}
	if pod.UID == "" {
		pod.UID = types.UID(hash)
	}
	pod.Name = strings.ToLower(pod.Name + "-" + node)
	if msgs := validation.IsDNS1123Subdomain(pod.Name); len(msgs) > 0 {
		return nil, fmt.Errorf("metadata.name %q: %s", pod.Name, strings.Join(msgs, ", "))
	}
	if pod.Namespace == "" {
		pod.Namespace = metav1.NamespaceDefault
	}
	if pod.Annotations == nil {
		pod.Annotations = map[string]string{}
	}
	kind, _, _ := strings.Cut(origin, ":")
	pod.Annotations[podconfig.AnnotationConfigHash] = string(pod.UID)
	pod.Annotations[podconfig.AnnotationConfigSource] = kind
	pod.Annotations[podconfig.AnnotationConfigSeen] = now.UTC().Format(time.RFC3339Nano)
	pod.Spec.NodeName = node
	if kind == "file" { // what evicts pods from a node must not evict what the node itself wants
		pod.Spec.Tolerations = append(pod.Spec.Tolerations, v1.Toleration{Operator: v1.TolerationOpExists, Effect: v1.TaintEffectNoExecute})
	}
	setDefaults(pod)
	return pod, nil
}

func staticHash(pod *v1.Pod, node, origin string) (string, error) {
	data, err := json.Marshal(pod)
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(append(data, []byte("\x00host:"+node+"\x00"+origin)...))
	return hex.EncodeToString(sum[:16]), nil
}
