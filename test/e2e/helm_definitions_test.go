package e2e

import (
	"strings"
	"sync"
	"testing"

	"helm.sh/helm/v4/pkg/chart/loader"
	batchv1 "k8s.io/api/batch/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"

	"wherry.dev/test/images"
)

// cellarChart has a definition in crds, an object of it among its templates, and a hook for each moment of
// its life; each is a job.
var cellarChart = map[string]string{
	"Chart.yaml":  `{apiVersion: v2, name: cellar, version: 1.0.0}`,
	"values.yaml": `vintage: 2024`,
	"crds/bottles.yaml": `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata:
  name: bottles.cellar.example.com
spec:
  group: cellar.example.com
  scope: Namespaced
  names: {plural: bottles, singular: bottle, kind: Bottle}
  versions:
  - name: v1
    served: true
    storage: true
    additionalPrinterColumns:
    - {name: Vintage, type: integer, jsonPath: .spec.vintage}
    schema:
      openAPIV3Schema:
        type: object
        required: [spec]
        properties:
          spec:
            type: object
            properties:
              vintage: {type: integer, minimum: 1900}
              size: {type: string, default: standard}
`,
	"templates/bottle.yaml": `
apiVersion: cellar.example.com/v1
kind: Bottle
metadata: {name: {{ .Release.Name }}}
spec: {vintage: {{ .Values.vintage }}}
`,
	"templates/_hook.tpl": `
{{- define "cellar.hook" -}}
apiVersion: batch/v1
kind: Job
metadata:
  name: {{ .name }}
  annotations:
    helm.sh/hook: {{ .name }}
    helm.sh/hook-delete-policy: {{ .policy }}
spec:
  backoffLimit: 0
  template:
    metadata: {labels: {app: hook}}
    spec:
      restartPolicy: Never
      containers:
      - {name: hook, image: "docker.io/library/busybox:1.36", command: [echo, {{ .name }}]}
{{- end -}}
`,
	"templates/hooks.yaml": `
{{ include "cellar.hook" (dict "name" "pre-install" "policy" "before-hook-creation") }}
---
{{ include "cellar.hook" (dict "name" "post-install" "policy" "before-hook-creation") }}
---
{{ include "cellar.hook" (dict "name" "pre-upgrade" "policy" "hook-succeeded") }}
---
{{ include "cellar.hook" (dict "name" "pre-delete" "policy" "hook-succeeded") }}
`,
}

// A chart with definitions and hooks: helm makes the definitions before all else and uses them at once, runs
// each hook at its moment and waits for it, deletes those hooks whose policy says so, and leaves definitions
// alone at the end, as it documents.
func TestHelmDefinitionsAndHooks(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.addImage("busybox.tar", images.SaveBusybox)
	c.up()
	chart, err := loader.Load(folder(t, cellarChart))
	if err != nil {
		t.Fatal(err)
	}
	h := c.helm(t, "cellar")
	does := func(what string, err error) {
		t.Helper()
		if err != nil {
			t.Fatalf("%s: %v\n%s", what, err, c.kubectl("get", "all,events", "-n", "cellar"))
		}
	}
	hooks := c.follow(t, "cellar")

	does("install", h.install("red", chart))
	c.hasBottle("2024 standard")

	does("upgrade", h.upgrade("red", chart, values{"vintage": 2025}))
	c.hasBottle("2025 standard")
	if err := h.upgrade("red", chart, values{"vintage": 1}); err == nil || !strings.Contains(err.Error(), "spec.vintage") {
		t.Errorf("an upgrade that the definition refuses: %v", err)
	}
	c.hasBottle("2025 standard")

	does("uninstall", h.uninstall("red"))
	if out, err := c.try("kubectl", "get", "bottle", "red", "-n", "cellar"); err == nil {
		t.Errorf("the release's object is there: %s", out)
	}
	if got := c.kubectl("get", "crd", "bottles.cellar.example.com", "-o", "name"); !strings.Contains(got, "bottles.cellar.example.com") {
		t.Errorf("the definition: %q", got)
	}
	// Those that are deleted once they have succeeded are gone, and the others stay: they are no part of the
	// release.
	if got := c.kubectl("get", "jobs", "-n", "cellar", "-o", "name"); got != "job.batch/post-install\njob.batch/pre-install\n" {
		t.Errorf("hooks that stay: %q", got)
	}
	c.until("the last hook has run", func() bool { return strings.HasSuffix(hooks.String(), "pre-delete done ") })
	want := ""
	for _, name := range []string{"pre-install", "post-install", "pre-upgrade", "pre-upgrade", "pre-delete"} {
		want += name + " begins, " + name + " done "
	}
	if got := hooks.String(); got != want {
		t.Errorf("hooks: %s, want %s", got, want)
	}

	// A definition that is there is used as it is, and takes the objects of another release.
	does("another install", h.install("red", chart))
	c.hasBottle("2024 standard")
}

// hasBottle checks the custom resource of the release red.
func (c *cluster) hasBottle(want string) {
	c.t.Helper()
	if got := c.kubectl("get", "bottle", "red", "-n", "cellar", "-o", "jsonpath={.spec.vintage} {.spec.size}"); got != want {
		c.t.Errorf("the bottle is %q, want %q", got, want)
	}
}

// hookLog is what happened to the jobs of a namespace, in order.
type hookLog struct {
	mu   sync.Mutex
	log  strings.Builder
	done map[types.UID]bool
}

// String returns it in words.
func (l *hookLog) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.log.String()
}

func (l *hookLog) begins(obj any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.log.WriteString(obj.(*batchv1.Job).Name + " begins, ")
}

func (l *hookLog) changed(_, obj any) {
	job := obj.(*batchv1.Job)
	l.mu.Lock()
	defer l.mu.Unlock()
	if job.Status.CompletionTime != nil && !l.done[job.UID] {
		l.done[job.UID] = true
		l.log.WriteString(job.Name + " done ")
	}
}

// follow writes down what happens to the jobs of a namespace, from now on.
func (c *cluster) follow(t *testing.T, namespace string) *hookLog {
	t.Helper()
	l := &hookLog{done: map[types.UID]bool{}}
	f := informers.NewSharedInformerFactoryWithOptions(c.client, 0, informers.WithNamespace(namespace))
	jobs := f.Batch().V1().Jobs().Informer()
	if _, err := jobs.AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: l.begins, UpdateFunc: l.changed}); err != nil {
		t.Fatal(err)
	}
	stop := make(chan struct{})
	f.Start(stop)
	t.Cleanup(func() {
		close(stop)
		f.Shutdown()
	})
	if !cache.WaitForCacheSync(t.Context().Done(), jobs.HasSynced) {
		t.Fatal("jobs cannot be watched")
	}
	return l
}
