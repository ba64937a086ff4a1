package storageversionmigrator_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	v1 "k8s.io/api/core/v1"
	storagemigrationv1 "k8s.io/api/storagemigration/v1"
	"k8s.io/apiextensions-apiserver/pkg/apihelpers"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	definitions "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset/typed/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/util/retry"
)

const (
	secrets   = "/registry/secrets/"
	encrypted = "k8s:enc:aescbc:v1:k1:"
	text      = "the plain text"
)

// secretive returns a cluster with secrets that were written before they were encrypted.
func secretive(t *testing.T, count int) *cluster {
	t.Helper()
	c := newCluster(t)
	c.serve()
	for i := range count {
		s := &v1.Secret{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("s-%03d", i)}, StringData: map[string]string{"k": text}}
		if _, err := c.CoreV1().Secrets("default").Create(t.Context(), s, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	c.serve(c.encrypt("secrets"))
	if lacking, all := c.without(secrets, encrypted); lacking != all || all < count {
		t.Fatalf("%d of %d secrets are plain before the migration", lacking, all)
	}
	return c
}

// allEncrypted checks that no secret is plain, and that all can be read.
func (c *cluster) allEncrypted(count int) {
	c.t.Helper()
	if lacking, all := c.without(secrets, encrypted); lacking != 0 || all < count {
		c.t.Errorf("%d of %d secrets are plain after the migration", lacking, all)
	}
	list, err := c.CoreV1().Secrets("default").List(c.t.Context(), metav1.ListOptions{})
	if err != nil || len(list.Items) != count {
		c.t.Fatalf("%d secrets, want %d: %v", len(list.Items), count, err)
	}
	for i := range list.Items {
		if s := &list.Items[i]; string(s.Data["k"]) != text {
			c.t.Errorf("secret %s: %q", s.Name, s.Data)
		} else if slices.ContainsFunc(s.ManagedFields, func(m metav1.ManagedFieldsEntry) bool { return m.Manager == "storage-version-migrator-controller" }) {
			c.t.Errorf("the migration owns fields of secret %s: %v", s.Name, s.ManagedFields)
		}
	}
}

// More than a page of secrets was written in plain. After the migration none is left in etcd.
func TestAMigrationLeavesNoPlainSecret(t *testing.T) {
	const count = 510
	c := secretive(t, count)
	c.migrate(nil)
	c.ask("m", "", "secrets")
	m := c.ended("m", storagemigrationv1.MigrationSucceeded)
	if m.Status.ResourceVersion == "" {
		t.Errorf("no version at which it began: %+v", m.Status)
	}
	c.allEncrypted(count)
}

// Every kind that is served can be migrated: an apply that says nothing is refused by none.
func TestEveryKindCanBeMigrated(t *testing.T) {
	c := newCluster(t)
	c.serve()
	ctx, core := t.Context(), c.CoreV1()
	account := &v1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default"}}
	if _, err := core.ServiceAccounts("default").Create(ctx, account, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p"}, Spec: v1.PodSpec{Containers: []v1.Container{{Name: "c", Image: "i"}}}}
	if _, err := core.Pods("default").Create(ctx, pod, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	event := &v1.Event{ObjectMeta: metav1.ObjectMeta{Name: "e"}, InvolvedObject: v1.ObjectReference{Kind: "Pod", Namespace: "default", Name: "p"}}
	if _, err := core.Events("default").Create(ctx, event, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := core.Nodes().Create(ctx, &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := definitions.NewForConfigOrDie(c.admin()).CustomResourceDefinitions().Create(ctx, widgets(), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	c.serve(c.encrypt("*.*"))
	c.migrate(nil)
	lists, err := c.Discovery().ServerPreferredResources()
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, l := range lists {
		gv, err := schema.ParseGroupVersion(l.GroupVersion)
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range l.APIResources {
			if slices.Contains(r.Verbs, "patch") && slices.Contains(r.Verbs, "list") {
				name := strings.TrimSuffix(r.Name+"."+gv.Group, ".")
				c.ask(name, gv.Group, r.Name)
				names = append(names, name)
			}
		}
	}
	for _, name := range names {
		c.ended(name, storagemigrationv1.MigrationSucceeded)
	}
	for key, value := range c.stored("/registry/") {
		if strings.HasPrefix(key, "/registry/masterleases/") {
			continue // which servers are there: no object, and of no kind
		}
		if !strings.HasPrefix(value, encrypted) {
			t.Errorf("%s is plain", key)
		}
	}
	if len(names) < 50 {
		t.Errorf("only %d kinds: %v", len(names), names)
	}
}

// A migration that ended is left alone, and is in no other's way.
func TestAMigrationThatEndedIsLeftAlone(t *testing.T) {
	c := secretive(t, 1)
	api, before := c.StoragemigrationV1().StorageVersionMigrations(), map[string]string{}
	for name, end := range map[string]storagemigrationv1.MigrationConditionType{
		"done": storagemigrationv1.MigrationSucceeded, "dead": storagemigrationv1.MigrationFailed,
	} {
		m := c.ask(name, "", "secrets")
		meta.SetStatusCondition(&m.Status.Conditions, metav1.Condition{Type: string(end), Status: metav1.ConditionTrue, Reason: "Test"})
		m, err := api.UpdateStatus(t.Context(), m, metav1.UpdateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		before[name] = m.ResourceVersion
	}
	c.migrate(nil)
	c.ask("other", "", "configmaps") // all that was there before it is known by its end
	c.ended("other", storagemigrationv1.MigrationSucceeded)
	if lacking, all := c.without(secrets, encrypted); lacking != all {
		t.Errorf("%d of %d secrets were written", all-lacking, all)
	}
	c.ask("fresh", "", "secrets")
	c.ended("fresh", storagemigrationv1.MigrationSucceeded)
	c.allEncrypted(1)
	for name, version := range before {
		if m := c.get(name); m.ResourceVersion != version {
			t.Errorf("%s was changed: %+v", name, m.Status)
		}
	}
}

// What cannot be migrated fails, and says what it is.
func TestAMigrationOfWhatCannotBeMigratedFails(t *testing.T) {
	c := newCluster(t)
	c.serve()
	c.migrate(nil)
	for name, tc := range map[string]struct{ group, resource, message string }{
		"nothing": {"example.com", "widgets", `the resource "widgets.example.com" is not served`},
		"core":    {"", "widgets", `the resource "widgets" is not served`},
		"listed":  {"", "componentstatuses", `the resource "componentstatuses" cannot be migrated, because it does not support patch`},
	} {
		c.ask(name, tc.group, tc.resource)
		m := c.ended(name, storagemigrationv1.MigrationFailed)
		if got := meta.FindStatusCondition(m.Status.Conditions, "Failed").Message; got != tc.message {
			t.Errorf("%s: %q, want %q", name, got, tc.message)
		}
	}
}

// isPatch reports whether a request is to rewrite a secret.
func isPatch(r *http.Request) bool {
	return r.Method == http.MethodPatch && strings.Contains(r.URL.Path, "/secrets/")
}

// Somebody changes an object, and somebody puts another in the place of one, between the list and the patch:
// the patch is refused, and the migration looks again.
func TestWhoeverWritesAtTheSameTimeWins(t *testing.T) {
	c := secretive(t, 3)
	api := c.CoreV1().Secrets("default")
	meddle := map[string]func() error{
		"s-000": func() error {
			_, err := api.Patch(t.Context(), "s-000", types.MergePatchType, []byte(`{"metadata":{"labels":{"changed":"yes"}}}`), metav1.PatchOptions{})
			return err
		},
		"s-001": func() error {
			if err := api.Delete(t.Context(), "s-001", metav1.DeleteOptions{}); err != nil {
				return err
			}
			s := &v1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "s-001", Labels: map[string]string{"changed": "yes"}}, StringData: map[string]string{"k": text}}
			_, err := api.Create(t.Context(), s, metav1.CreateOptions{})
			return err
		},
	}
	var (
		mu        sync.Mutex
		meddled   = map[string]bool{}
		conflicts atomic.Int32
		lists     atomic.Int32
	)
	c.migrate(func(next http.RoundTripper, r *http.Request) (*http.Response, error) {
		if name := r.URL.Path[strings.LastIndex(r.URL.Path, "/")+1:]; isPatch(r) {
			mu.Lock()
			first := !meddled[name]
			meddled[name] = true
			mu.Unlock()
			if f := meddle[name]; f != nil && first {
				if err := f(); err != nil {
					t.Errorf("%s: %v", name, err)
				}
			}
		}
		if r.Method == http.MethodGet && strings.HasSuffix(r.URL.Path, "/secrets") {
			lists.Add(1)
		}
		res, err := next.RoundTrip(r)
		if err == nil && isPatch(r) && res.StatusCode == http.StatusConflict {
			conflicts.Add(1)
		}
		return res, err
	})
	c.ask("m", "", "secrets")
	c.ended("m", storagemigrationv1.MigrationSucceeded)
	c.allEncrypted(3)
	// One list is of the version at which it began.
	if got := conflicts.Load(); got != 2 || lists.Load() < 3 {
		t.Errorf("%d conflicts, want 2; %d lists", got, lists.Load())
	}
	for _, name := range []string{"s-000", "s-001"} {
		s, err := api.Get(t.Context(), name, metav1.GetOptions{})
		if err != nil || s.Labels["changed"] != "yes" {
			t.Errorf("%s: %v, %v", name, s.Labels, err)
		}
	}
}

// The process ends in the middle of a migration. The next one goes on with what is left.
func TestAMigrationGoesOnAfterACrash(t *testing.T) {
	const count, before = 20, 7
	c := secretive(t, count)
	var first, second atomic.Int32
	reached := make(chan struct{})
	stop := c.migrate(func(next http.RoundTripper, r *http.Request) (*http.Response, error) {
		if isPatch(r) && first.Add(1) > before {
			if first.Load() == before+1 {
				close(reached)
			}
			return nil, errors.New("the process is gone")
		}
		return next.RoundTrip(r)
	})
	c.ask("m", "", "secrets")
	<-reached
	stop()
	began := c.get("m").Status
	if began.ResourceVersion == "" || !meta.IsStatusConditionTrue(began.Conditions, "Running") {
		t.Fatalf("in the middle: %+v", began)
	}
	lacking, all := c.without(secrets, encrypted)
	if all-lacking != before {
		t.Errorf("%d secrets were written before the crash, want %d", all-lacking, before)
	}
	c.migrate(func(next http.RoundTripper, r *http.Request) (*http.Response, error) {
		if isPatch(r) {
			if second.Add(1) == 1 { // a moment of weakness
				return nil, errors.New("connection lost")
			}
		}
		return next.RoundTrip(r)
	})
	m := c.ended("m", storagemigrationv1.MigrationSucceeded)
	c.allEncrypted(count)
	if m.Status.ResourceVersion != began.ResourceVersion {
		t.Errorf("it began at %s, and again at %s", began.ResourceVersion, m.Status.ResourceVersion)
	}
	if got := int(second.Load()); got != 1+all-before {
		t.Errorf("%d patches after the crash, want %d", got, 1+all-before)
	}
}

func widgets() *apiextensionsv1.CustomResourceDefinition {
	version := func(name string, storage bool) apiextensionsv1.CustomResourceDefinitionVersion {
		anything := true
		return apiextensionsv1.CustomResourceDefinitionVersion{
			Name: name, Served: true, Storage: storage,
			Schema: &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: &apiextensionsv1.JSONSchemaProps{
				Type: "object", XPreserveUnknownFields: &anything,
			}},
		}
	}
	return &apiextensionsv1.CustomResourceDefinition{
		ObjectMeta: metav1.ObjectMeta{Name: "widgets.example.com"},
		Spec: apiextensionsv1.CustomResourceDefinitionSpec{
			Group: "example.com", Scope: apiextensionsv1.NamespaceScoped,
			Names:    apiextensionsv1.CustomResourceDefinitionNames{Plural: "widgets", Kind: "Widget"},
			Versions: []apiextensionsv1.CustomResourceDefinitionVersion{version("v1", true), version("v2", false)},
		},
	}
}

// Custom resources are stored in the version of now after a migration, and their definition says so.
func TestCustomResourcesAreStoredInTheNewVersion(t *testing.T) {
	const prefix = "/registry/example.com/widgets/"
	c := newCluster(t)
	c.serve()
	c.migrate(nil)
	ctx, crds := t.Context(), definitions.NewForConfigOrDie(c.admin()).CustomResourceDefinitions()
	if _, err := crds.Create(ctx, widgets(), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	c.ask("at-once", "example.com", "widgets") // it waits until they are served
	c.ended("at-once", storagemigrationv1.MigrationSucceeded)
	api := dynamic.NewForConfigOrDie(c.admin()).Resource(schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: "widgets"}).Namespace("default")
	create := func(name string) error {
		w := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "example.com/v1", "kind": "Widget", "colour": "red"}}
		w.SetName(name)
		_, err := api.Create(ctx, w, metav1.CreateOptions{})
		return err
	}
	for i := range 5 {
		eventually(t, "a widget is created", func() error { return create(fmt.Sprint("w", i)) })
	}
	// Twice: a definition that was migrated before is marked anew.
	for round, version := range []string{"v2", "v1"} {
		change := func(crd *apiextensionsv1.CustomResourceDefinition) {
			for i := range crd.Spec.Versions {
				crd.Spec.Versions[i].Storage = crd.Spec.Versions[i].Name == version
			}
		}
		if err := retry.RetryOnConflict(retry.DefaultRetry, func() error { return changeDefinition(ctx, crds, change) }); err != nil {
			t.Fatal(err)
		}
		stored := `{"apiVersion":"example.com/` + version + `"`
		tries := 0
		eventually(t, "the change of the definition is in force", func() error {
			tries++
			name := fmt.Sprintf("n%d-%d", round, tries)
			if err := create(name); err != nil {
				return err
			}
			if got := c.stored(prefix + "default/" + name)[prefix+"default/"+name]; !strings.HasPrefix(got, stored) {
				return fmt.Errorf("stored: %s", got)
			}
			return nil
		})
		if lacking, _ := c.without(prefix, stored); lacking < 5 {
			t.Fatalf("only %d widgets of the old version", lacking)
		}
		name := "to-" + version
		c.ask(name, "example.com", "widgets")
		c.ended(name, storagemigrationv1.MigrationSucceeded)
		if lacking, all := c.without(prefix, stored); lacking != 0 || all < 6 {
			t.Errorf("%d of %d widgets are of another version than %s", lacking, all, version)
		}
		crd, err := crds.Get(ctx, "widgets.example.com", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(crd.Status.StoredVersions, []string{version}) {
			t.Errorf("stored versions %v, want %s", crd.Status.StoredVersions, version)
		}
		is := apihelpers.FindCRDCondition(crd, apiextensionsv1.StorageMigrating)
		if is == nil || is.Status != apiextensionsv1.ConditionFalse || is.Reason != "MigrationSucceeded" || is.ObservedGeneration != crd.Generation {
			t.Errorf("condition %+v", is)
		}
		if !apihelpers.IsCRDConditionTrue(crd, apiextensionsv1.Established) {
			t.Errorf("conditions %+v", crd.Status.Conditions)
		}
	}
	if w, err := api.Get(ctx, "w0", metav1.GetOptions{}); err != nil || w.Object["colour"] != "red" {
		t.Errorf("%v, %v", w, err)
	}
}

func changeDefinition(ctx context.Context, crds definitions.CustomResourceDefinitionInterface, change func(*apiextensionsv1.CustomResourceDefinition)) error {
	crd, err := crds.Get(ctx, "widgets.example.com", metav1.GetOptions{})
	if err != nil {
		return err
	}
	change(crd)
	_, err = crds.Update(ctx, crd, metav1.UpdateOptions{})
	return err
}
