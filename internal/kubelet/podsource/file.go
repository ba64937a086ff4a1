package podsource

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
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/fsnotify/fsnotify"
	v1 "k8s.io/api/core/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	jsonserializer "k8s.io/apimachinery/pkg/runtime/serializer/json"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/klog/v2"
	"sigs.k8s.io/yaml"

	"wherry.dev/internal/api/defaults"
	"wherry.dev/internal/api/pods"
	"wherry.dev/internal/api/validation"
	"wherry.dev/internal/safepath"
)

// maxManifest is the largest manifest that is read.
const maxManifest = 10 << 20

// maxUID is the longest UID of a pod, which a manifest can set.
const maxUID = 128

var uidForm = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_.-]*$`)

// Manifests are static pods in a directory, or in one file.
type Manifests struct {
	Path, Node string
	// They are also read again at this interval: the target of a link changes without an event.
	Every time.Duration
	// Set gets all static pods that are there now.
	Set func([]*v1.Pod)
	// Bad is called, once per error, for a file that cannot be used and is not just being written,
	// with the pod that keeps running, nil if there is none.
	Bad func(file string, kept *v1.Pod, err error)
}

// Follow reads the manifests again whenever the kernel reports a change. If a file cannot be used,
// the pod that it last described stays (docs/adr/0005).
func (m Manifests) Follow(ctx context.Context) error {
	w, err := fsnotify.NewWatcher()
	if err != nil {
		return fmt.Errorf("watch static pods: %w", err)
	}
	defer func() { _ = w.Close() }()
	f := &files{Manifests: m, path: filepath.Clean(m.Path), last: map[string]*v1.Pod{}, told: map[string]string{}}
	again := time.NewTicker(max(m.Every, time.Millisecond))
	defer again.Stop()
	f.watch(ctx, w)
	f.tell(f.read(ctx))
	for {
		select {
		case <-ctx.Done():
			return nil
		case ev, ok := <-w.Events:
			if !ok {
				return errors.New("watch static pods: the watch ended")
			}
			if ev.Name == f.path {
				f.watch(ctx, w) // it may be another one now
			}
			if ev.Has(fsnotify.Remove) || ev.Has(fsnotify.Rename) {
				f.removed(ev.Name)
			}
			f.read(ctx)
		case err := <-w.Errors:
			klog.FromContext(ctx).Error(err, "Failed to watch static pods", "path", f.path)
			f.read(ctx)
		case <-again.C:
			f.watch(ctx, w)
			f.tell(f.read(ctx))
		}
	}
}

// removed hands over the pods without that of a file, which may be there again by now: whoever takes a manifest away and
// puts it back restarts its pod.
func (f *files) removed(name string) {
	if f.last[name] == nil {
		return
	}
	delete(f.last, name)
	f.Set(lastOfEach(f.last))
}

// lastOfEach returns the pods of files. Of those of one name, the last file's counts.
func lastOfEach(files map[string]*v1.Pod) []*v1.Pod {
	out := make([]*v1.Pod, 0, len(files))
	known := map[types.NamespacedName]bool{}
	for _, name := range slices.Backward(slices.Sorted(maps.Keys(files))) {
		pod := files[name]
		if key := (types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name}); !known[key] {
			known[key] = true
			out = append(out, pod)
		}
	}
	slices.Reverse(out)
	return out
}

type files struct {
	Manifests
	path string
	last map[string]*v1.Pod // by file
	told map[string]string  // errors, by file
}

// tell reports files that cannot be used, each error once.
func (f *files) tell(bad map[string]error) {
	for name, err := range bad {
		if f.told[name] != err.Error() {
			f.told[name] = err.Error()
			f.Bad(name, f.last[name], err)
		}
	}
	maps.DeleteFunc(f.told, func(name, _ string) bool { return bad[name] == nil })
}

// watch watches the directory or, for a single file, the directory that contains it, since editors
// replace files. Watching it again does no harm.
func (f *files) watch(ctx context.Context, w *fsnotify.Watcher) {
	dir := f.path
	if info, err := os.Stat(f.path); err == nil && !info.IsDir() {
		dir = filepath.Dir(f.path)
	}
	if err := w.Add(dir); err != nil {
		klog.FromContext(ctx).V(2).Info("Cannot watch static pods yet", "path", f.path, "err", err)
	}
}

// read hands over the pods of all manifests, and returns which files cannot be used. A directory
// that cannot be listed changes nothing; only one that does not exist has no manifests.
func (f *files) read(ctx context.Context) map[string]error {
	log := klog.FromContext(ctx)
	names, err := f.names()
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		log.Error(err, "Cannot list static pods", "path", f.path)
		return nil
	}
	bad := map[string]error{}
	now := make(map[string]*v1.Pod, len(names))
	byName := map[types.NamespacedName]string{}
	for _, name := range names {
		pod, err := readManifest(name, f.Node)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			bad[name], pod = err, f.last[name]
			log.Error(err, "Could not process manifest file; its last good pod, if any, keeps running", "path", name, "runsOn", pod != nil)
		}
		if pod == nil {
			continue
		}
		now[name] = pod
		key := types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name}
		if other := byName[key]; other != "" {
			log.Error(nil, "Two manifests name the same pod, using the last one", "pod", key, "ignored", other, "file", name)
		}
		byName[key] = name
	}
	f.last = now
	f.Set(lastOfEach(now))
	return bad
}

// names lists the manifests, without the leftovers of editors and package managers.
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
		if err != nil || info.IsDir() || strings.HasPrefix(e.Name(), ".") || strings.HasSuffix(e.Name(), "~") {
			continue
		}
		out = append(out, name)
	}
	return out, nil
}

func readManifest(name, node string) (*v1.Pod, error) {
	data, err := safepath.ReadFile(name, maxManifest)
	if err != nil {
		return nil, err
	}
	return StaticPod(data, node, "file:"+name, time.Now())
}

// StaticPod decodes a manifest and turns it into the pod that the node runs: named after the node,
// with a UID derived from content, node and origin. Unknown fields are those of a newer kubelet and
// are dropped, as everywhere in Kubernetes.
func StaticPod(data []byte, node, origin string, now time.Time) (*v1.Pod, error) {
	obj, err := decode(data)
	if err != nil {
		return nil, err
	}
	pod, ok := obj.(*v1.Pod)
	if !ok {
		return nil, fmt.Errorf("invalid pod: it is a %T", obj)
	}
	return makeStatic(pod, node, origin, now)
}

func decode(data []byte) (runtime.Object, error) {
	err := recognize(data)
	var obj runtime.Object
	if err == nil {
		obj, _, err = scheme.Codecs.UniversalDeserializer().Decode(data, nil, nil)
	}
	if err != nil {
		return nil, fmt.Errorf("couldn't parse as pod(%w), please check config file", err)
	}
	return obj, nil
}

// yamlLine is the only part of a YAML error that may be reported.
var yamlLine = regexp.MustCompile(`line \d+`)

// recognize refuses what is not a Kubernetes object, without quoting its text: the error goes to
// logs and events, and whoever may put a link to root's files here need not be root.
func recognize(data []byte) error {
	doc, err := yaml.YAMLToJSON(data)
	if err != nil {
		if line := yamlLine.FindString(err.Error()); line != "" {
			return fmt.Errorf("it is not YAML: %s", line)
		}
		return errors.New("it is not YAML")
	}
	kind, err := jsonserializer.DefaultMetaFactory.Interpret(doc)
	if err != nil || kind.Kind == "" || kind.Version == "" {
		return errors.New("it has no apiVersion and kind")
	}
	if !scheme.Scheme.Recognizes(*kind) {
		return errors.New("its apiVersion and kind are unknown; is it a v1 Pod?")
	}
	return nil
}

// makeStatic turns a decoded pod into a static pod.
func makeStatic(pod *v1.Pod, node, origin string, now time.Time) (*v1.Pod, error) {
	if pod.Name == "" {
		return nil, errors.New("invalid pod: name is needed for the pod")
	}
	pod.TypeMeta = metav1.TypeMeta{Kind: "Pod", APIVersion: "v1"}
	pod.Status = v1.PodStatus{}
	hash, err := staticHash(pod, node, origin)
	if err != nil {
		return nil, err
	}
	if pod.UID == "" {
		pod.UID = types.UID(hash)
	}
	if len(pod.UID) > maxUID || !uidForm.MatchString(string(pod.UID)) { // it names directories and cgroups
		return nil, fmt.Errorf("invalid pod: metadata.uid: must be up to %d letters, digits, '-', '_' and '.', and begin with a letter or digit", maxUID)
	}
	pod.Name += "-" + strings.ToLower(node)
	if pod.Namespace == "" {
		pod.Namespace = metav1.NamespaceDefault
	}
	if pod.Annotations == nil {
		pod.Annotations = map[string]string{}
	}
	kind, _, _ := strings.Cut(origin, ":")
	pod.Annotations[pods.AnnotationConfigHash] = string(pod.UID)
	pod.Annotations[pods.AnnotationConfigSource] = kind
	pod.Annotations[pods.AnnotationConfigSeen] = now.UTC().Format(time.RFC3339Nano)
	pod.Spec.NodeName = node
	if kind == "file" {
		tolerateAll(pod)
	}
	defaults.Pod(pod)
	defaults.PodResources(pod)
	if err := check(pod); err != nil {
		return nil, err
	}
	return pod, nil
}

// tolerateAll lets a pod stay: what evicts pods from a node must not evict what the node itself
// wants.
func tolerateAll(pod *v1.Pod) {
	all := v1.Toleration{Operator: v1.TolerationOpExists, Effect: v1.TaintEffectNoExecute}
	rest := slices.DeleteFunc(pod.Spec.Tolerations, func(t v1.Toleration) bool { return t.MatchToleration(&all) })
	pod.Spec.Tolerations = append(rest, all)
}

// check refuses what the API server would refuse, and what needs an API server.
func check(pod *v1.Pod) error {
	problems := apivalidation.ValidateObjectMeta(&pod.ObjectMeta, true, apivalidation.NameIsDNSSubdomain, field.NewPath("metadata"))
	if problems = append(problems, validation.PodCreate(pod)...); len(problems) > 0 {
		return fmt.Errorf("invalid pod: %w", problems.ToAggregate())
	}
	if what := apiReference(pod); what != "" {
		return fmt.Errorf("static pods may not reference %s", what)
	}
	return nil
}

func staticHash(pod *v1.Pod, node, origin string) (string, error) {
	data, err := json.Marshal(pod)
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(append(data, []byte("\x00host:"+node+"\x00"+origin)...))
	return hex.EncodeToString(sum[:16]), nil
}
