package namespace_test

import (
	"context"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"

	"wherry.dev/internal/apiserver"
	"wherry.dev/internal/controller/namespace"
)

// serve runs an API server, and over it the controller as the account that it has in a cluster.
func serve(t *testing.T) *rest.Config {
	t.Helper()
	cfg := apiserver.DefaultConfig()
	cfg.DataDir, cfg.SecurePort, cfg.BindAddress = t.TempDir(), 0, net.IPv4(127, 0, 0, 1)
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	s, err := apiserver.New(ctx, cfg)
	if err != nil {
		cancel()
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- s.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	select {
	case <-s.Ready():
	case <-time.After(2 * time.Minute):
		t.Fatal("not ready")
	}
	account := s.ClientConfig("system:serviceaccount:kube-system:namespace-controller", "system:serviceaccounts", "system:serviceaccounts:kube-system")
	client := kubernetes.NewForConfigOrDie(account)
	f := informers.NewSharedInformerFactory(client, 0)
	c, err := namespace.New(client, metadata.NewForConfigOrDie(account), f)
	if err != nil {
		t.Fatal(err)
	}
	running, stop := context.WithCancel(ctx)
	f.Start(running.Done())
	ended := make(chan error, 1)
	go func() { ended <- c.Run(running) }()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		f.Shutdown()
	})
	return s.ClientConfig("admin", "system:masters")
}

var (
	crds    = schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}
	gadgets = schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: "gadgets"}
)

func definition() *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
		"metadata": map[string]any{"name": "gadgets.example.com"},
		"spec": map[string]any{
			"group": "example.com", "scope": "Namespaced", "names": map[string]any{"plural": "gadgets", "kind": "Gadget"},
			"versions": []any{map[string]any{
				"name": "v1", "served": true, "storage": true, "schema": map[string]any{"openAPIV3Schema": map[string]any{"type": "object"}},
			}},
		},
	}}
}

func gadget(name string, finalizers ...string) *unstructured.Unstructured {
	g := &unstructured.Unstructured{}
	g.SetAPIVersion("example.com/v1")
	g.SetKind("Gadget")
	g.SetName(name)
	g.SetFinalizers(finalizers)
	return g
}

func eventually(t *testing.T, what string, check func() error) {
	t.Helper()
	var err error
	for deadline := time.Now().Add(2 * time.Minute); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		if err = check(); err == nil {
			return
		}
	}
	t.Fatalf("%s: %v", what, err)
}

// A namespace with objects of a kind that a user defined waits for their finalizers and says so; it goes once
// these are gone, or once the kind itself is.
func TestNamespaceWithCustomResources(t *testing.T) {
	cfg := serve(t)
	ctx, c, anyKind := t.Context(), kubernetes.NewForConfigOrDie(cfg), dynamic.NewForConfigOrDie(cfg)
	if _, err := anyKind.Resource(crds).Create(ctx, definition(), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	gone := func(name string) {
		t.Helper()
		eventually(t, "namespace "+name+" goes", func() error {
			ns, err := c.CoreV1().Namespaces().Get(ctx, name, metav1.GetOptions{})
			if apierrors.IsNotFound(err) {
				return nil
			}
			return fmt.Errorf("%w %+v", err, ns.Status.Conditions)
		})
	}
	begin := func(name string) dynamic.ResourceInterface {
		t.Helper()
		if _, err := c.CoreV1().Namespaces().Create(ctx, &v1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		in := anyKind.Resource(gadgets).Namespace(name)
		for i := range 3 {
			var finalizers []string
			if i > 0 {
				finalizers = []string{"example.com/hold"}
			}
			eventually(t, "a gadget is created", func() error {
				_, err := in.Create(ctx, gadget(fmt.Sprint("g", i), finalizers...), metav1.CreateOptions{})
				return err
			})
		}
		if err := c.CoreV1().Namespaces().Delete(ctx, name, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		eventually(t, "namespace "+name+" says what it waits for", func() error {
			ns, err := c.CoreV1().Namespaces().Get(ctx, name, metav1.GetOptions{})
			if err != nil {
				return err
			}
			var said []string
			for _, c := range ns.Status.Conditions {
				if c.Status == v1.ConditionTrue {
					said = append(said, c.Message)
				}
			}
			const want = "Some resources are remaining: gadgets.example.com has 2 resource instances\n" +
				"Some content in the namespace has finalizers remaining: example.com/hold in 2 resource instances"
			if got := strings.Join(said, "\n"); got != want {
				return fmt.Errorf("%q, want %q", got, want)
			}
			return nil
		})
		if _, err := in.Create(ctx, gadget("late"), metav1.CreateOptions{}); !apierrors.HasStatusCause(err, v1.NamespaceTerminatingCause) {
			t.Errorf("a creation while the namespace goes: %v", err)
		}
		return in
	}
	in := begin("freed")
	for _, name := range []string{"g1", "g2"} {
		if _, err := in.Patch(ctx, name, types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	gone("freed")

	in = begin("undefined")
	if err := anyKind.Resource(crds).Delete(ctx, "gadgets.example.com", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the definition waits for its objects", func() error {
		crd, err := anyKind.Resource(crds).Get(ctx, "gadgets.example.com", metav1.GetOptions{})
		if err != nil {
			return err
		}
		if finalizers := crd.GetFinalizers(); crd.GetDeletionTimestamp() == nil || len(finalizers) != 1 {
			return fmt.Errorf("finalizers %q", finalizers)
		}
		return nil
	})
	for _, name := range []string{"g1", "g2"} {
		if _, err := in.Patch(ctx, name, types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	gone("undefined")
	eventually(t, "the definition goes", func() error {
		_, err := anyKind.Resource(crds).Get(ctx, "gadgets.example.com", metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return fmt.Errorf("still there: %w", err)
	})
}
