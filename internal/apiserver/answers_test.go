package apiserver

import (
	"context"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer/cbor/direct"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apiserver/pkg/features"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	featuregatetesting "k8s.io/component-base/featuregate/testing"
)

// accepting sends requests that want an answer of one type.
type accepting struct {
	mediaType string
	next      http.RoundTripper
}

func (a accepting) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("Accept", a.mediaType)
	return a.next.RoundTrip(r)
}

func accept(cfg *rest.Config, mediaType string) *rest.Config {
	out := rest.CopyConfig(cfg)
	out.Wrap(func(next http.RoundTripper) http.RoundTripper { return accepting{mediaType, next} })
	return out
}

// defineWidgets makes a kind of users with one object, w, and returns its resource.
func defineWidgets(t *testing.T, cfg *rest.Config, change func(*apiextensionsv1.CustomResourceDefinition)) schema.GroupVersionResource {
	t.Helper()
	crd := widgets()
	change(crd)
	if _, err := clientset.NewForConfigOrDie(cfg).ApiextensionsV1().CustomResourceDefinitions().Create(t.Context(), crd, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	gvr := schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: "widgets"}
	obj := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "example.com/v1", "kind": "Widget", "metadata": map[string]any{"name": "w", "labels": map[string]any{"a": "b"}},
	}}
	err := wait.PollUntilContextTimeout(t.Context(), 5*time.Millisecond, time.Minute, true, func(ctx context.Context) (bool, error) {
		_, err := dynamic.NewForConfigOrDie(cfg).Resource(gvr).Namespace("default").Create(ctx, obj, metav1.CreateOptions{})
		return err == nil, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return gvr
}

// TestMetadataAndWarnings: objects without what their kinds have of their own, of rows and of kinds of
// users, and what a client is told of a version that will go.
func TestMetadataAndWarnings(t *testing.T) {
	s := start(t)
	ctx, cfg := t.Context(), s.ClientConfig("admin", "system:masters")
	widget := defineWidgets(t, cfg, func(crd *apiextensionsv1.CustomResourceDefinition) {
		crd.Spec.Versions[0].Deprecated, crd.Spec.Versions[0].DeprecationWarning = true, new("widgets are out of fashion")
	})
	m := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "w", Labels: map[string]string{"a": "b"}}, Data: map[string]string{"secret": "x"}}
	if _, err := admin(t, s).CoreV1().ConfigMaps("default").Create(ctx, m, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	for _, gvr := range []schema.GroupVersionResource{core("configmaps"), widget} {
		var told warnings
		warned := rest.CopyConfig(cfg)
		warned.WarningHandler = &told
		api := metadata.NewForConfigOrDie(warned).Resource(gvr).Namespace("default")
		one, err := api.Get(ctx, "w", metav1.GetOptions{})
		if err != nil || one.Labels["a"] != "b" || one.UID == "" {
			t.Errorf("%s: %v, %v", gvr.Resource, err, one)
		}
		list, err := api.List(ctx, metav1.ListOptions{LabelSelector: "a=b"})
		if err != nil || len(list.Items) != 1 || list.Items[0].UID != one.UID {
			t.Errorf("%s: %v, %v", gvr.Resource, err, list)
		}
		w, err := api.Watch(ctx, metav1.ListOptions{ResourceVersion: "0"})
		if err != nil {
			t.Fatal(err)
		}
		if got, ok := (<-w.ResultChan()).Object.(*metav1.PartialObjectMetadata); !ok {
			t.Errorf("%s: watched %v", gvr.Resource, got)
		}
		w.Stop()
		if got := slices.Contains(told, "widgets are out of fashion"); got != (gvr == widget) {
			t.Errorf("%s: warnings %q", gvr.Resource, told)
		}
		path := "/apis/" + gvr.Group + "/v1/namespaces/default/" + gvr.Resource + "/w"
		if gvr.Group == "" {
			path = "/api/v1/namespaces/default/configmaps/w"
		}
		res, body := ask(t, accept(cfg, "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"), path)
		if res.StatusCode != http.StatusOK || !strings.Contains(body, `"kind":"PartialObjectMetadata"`) || strings.Contains(body, `"data":`) || strings.Contains(body, `"spec"`) {
			t.Errorf("%s: %s, %s", gvr.Resource, res.Status, body)
		}
	}
}

// TestCBOR: upstream's gate decides whether objects are served in CBOR; it is off by default.
func TestCBOR(t *testing.T) {
	for _, on := range []bool{false, true} {
		featuregatetesting.SetFeatureGateDuringTest(t, utilfeature.DefaultFeatureGate, features.CBORServingAndStorage, on)
		s := start(t)
		cfg := s.ClientConfig("admin", "system:masters")
		widget := defineWidgets(t, cfg, func(*apiextensionsv1.CustomResourceDefinition) {})
		for _, path := range []string{"/api/v1/namespaces/default", "/apis/" + widget.Group + "/v1/namespaces/default/widgets/w"} {
			res, body := ask(t, accept(cfg, "application/cbor"), path)
			if !on {
				if res.StatusCode != http.StatusNotAcceptable {
					t.Errorf("%s without the gate: %s", path, res.Status)
				}
				continue
			}
			var obj map[string]any
			if err := direct.Unmarshal([]byte(body), &obj); err != nil || res.StatusCode != http.StatusOK || obj["metadata"] == nil {
				t.Errorf("%s: %s, %v, %v", path, res.Status, err, obj)
			}
		}
	}
}

func TestFeatureGates(t *testing.T) {
	cfg := DefaultConfig()
	given(t, &cfg, "--feature-gates=TopologyAwareWorkloadScheduling=true")
	if err := cfg.setFeatures(logr.Discard()); err == nil || !strings.Contains(err.Error(), "takes GenericWorkload") {
		t.Errorf("a gate without the one that it takes: %v", err)
	}
	cfg = DefaultConfig()
	given(t, &cfg, "--feature-gates=WatchList=true,NoSuchGate=true")
	featuregatetesting.SetFeatureGateDuringTest(t, utilfeature.DefaultFeatureGate, features.WatchList, false)
	if err := cfg.setFeatures(logr.Discard()); err != nil || !utilfeature.DefaultFeatureGate.Enabled(features.WatchList) {
		t.Errorf("%v", err)
	}
}
