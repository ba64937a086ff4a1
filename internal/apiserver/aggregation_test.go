package apiserver

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	"k8s.io/kube-aggregator/pkg/apis/apiregistration/v1/helper"
	"k8s.io/kube-aggregator/pkg/client/clientset_generated/clientset"
)

// extensionServer is another API server, for one group version. It answers for its paths who asks.
type extensionServer struct {
	*httptest.Server
	hang chan struct{} // until it is closed, requests hang; nil: they do not
}

func (e *extensionServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if e.hang != nil {
		select {
		case <-e.hang:
		case <-r.Context().Done():
			return
		}
	}
	w.Header().Set("Content-Type", "application/json")
	answer := func(v any) { _ = json.NewEncoder(w).Encode(v) }
	switch r.URL.Path {
	case "/apis/ext.example.com/v1", "/apis/metrics.k8s.io/v1beta1":
		answer(metav1.APIResourceList{
			TypeMeta:     metav1.TypeMeta{Kind: "APIResourceList", APIVersion: "v1"},
			GroupVersion: strings.TrimPrefix(r.URL.Path, "/apis/"),
			APIResources: []metav1.APIResource{{Name: "nodes", Kind: "Ext", Verbs: []string{"get"}}},
		})
	case "/apis":
		answer(metav1.APIGroupList{TypeMeta: metav1.TypeMeta{Kind: "APIGroupList", APIVersion: "v1"}})
	case "/openapi/v3":
		answer(map[string]any{"paths": map[string]any{"apis/ext.example.com/v1": map[string]string{"serverRelativeURL": "/openapi/v3/apis/ext.example.com/v1?hash=ABC"}}})
	case "/openapi/v3/apis/ext.example.com/v1":
		answer(map[string]any{"openapi": "3.0.0", "info": map[string]any{"title": "ext"}, "paths": map[string]any{}})
	case "/openapi/v2":
		answer(map[string]any{"swagger": "2.0", "paths": map[string]any{"/apis/ext.example.com/v1/": map[string]any{"get": map[string]any{"operationId": "extOp", "responses": map[string]any{}}}}})
	default:
		answer(map[string]any{
			"path": r.URL.Path, "user": r.Header.Get("X-Remote-User"), "groups": r.Header.Values("X-Remote-Group"),
			"proven": len(r.TLS.VerifiedChains) > 0, "token": r.Header.Get("Authorization"),
		})
	}
}

// startExtension starts a server that trusts the front proxies of s, and makes a service lead to it.
func startExtension(t *testing.T, s *Server, hang chan struct{}) *apiregistrationv1.ServiceReference {
	t.Helper()
	e := &extensionServer{hang: hang}
	e.Server = httptest.NewUnstartedServer(e)
	pem, err := os.ReadFile(filepath.Join(s.cfg.CertDir, "front-proxy-ca.crt"))
	if err != nil {
		t.Fatal(err)
	}
	proxies := x509.NewCertPool()
	proxies.AppendCertsFromPEM(pem)
	e.TLS = &tls.Config{ClientCAs: proxies, ClientAuth: tls.VerifyClientCertIfGiven}
	e.StartTLS()
	t.Cleanup(e.CloseClientConnections)
	t.Cleanup(e.Close)
	_, port, err := net.SplitHostPort(e.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	number, err := strconv.ParseInt(port, 10, 32)
	if err != nil {
		t.Fatal(err)
	}
	svc := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "ext", Namespace: "default"},
		Spec:       corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName, ExternalName: "localhost"},
	}
	if _, err := admin(t, s).CoreV1().Services("default").Create(t.Context(), svc, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	return &apiregistrationv1.ServiceReference{Namespace: "default", Name: "ext", Port: new(int32(number))}
}

func registrations(t *testing.T, s *Server) *clientset.Clientset {
	t.Helper()
	c, err := clientset.NewForConfig(s.ClientConfig("admin", "system:masters"))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func register(t *testing.T, s *Server, gv metav1.GroupVersion, to *apiregistrationv1.ServiceReference) {
	t.Helper()
	service := &apiregistrationv1.APIService{
		ObjectMeta: metav1.ObjectMeta{Name: gv.Version + "." + gv.Group},
		Spec: apiregistrationv1.APIServiceSpec{
			Group: gv.Group, Version: gv.Version, Service: to, InsecureSkipTLSVerify: true, GroupPriorityMinimum: 100, VersionPriority: 100,
		},
	}
	api := registrations(t, s).ApiregistrationV1().APIServices()
	_, err := api.Create(t.Context(), service, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		have, err := api.Get(t.Context(), service.Name, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		have.Spec = service.Spec
		if _, err := api.Update(t.Context(), have, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		return
	}
	if err != nil {
		t.Fatal(err)
	}
}

// within tries until it succeeds, for a minute.
func within(t *testing.T, try func(ctx context.Context) error) {
	t.Helper()
	var last error
	err := wait.PollUntilContextTimeout(t.Context(), 5*time.Millisecond, time.Minute, true, func(ctx context.Context) (bool, error) {
		last = try(ctx)
		return last == nil, nil
	})
	if err != nil {
		t.Fatal(last)
	}
}

func raw(ctx context.Context, c kubernetes.Interface, path string) ([]byte, error) {
	return c.Discovery().RESTClient().Get().AbsPath(path).SetHeader("Accept", "application/json").DoRaw(ctx)
}

// TestAnotherServersGroup: requests for a group that an APIService gives to another server reach it,
// with the user's name and the proof that we say so; it is part of discovery and OpenAPI.
func TestAnotherServersGroup(t *testing.T) {
	s := start(t)
	to := startExtension(t, s, nil)
	register(t, s, metav1.GroupVersion{Group: "ext.example.com", Version: "v1"}, to)
	c := clientFor(t, s.ClientConfig("jane", "system:masters", "dancers"))
	var got struct {
		Path, User, Token string
		Groups            []string
		Proven            bool
	}
	within(t, func(ctx context.Context) error {
		body, err := raw(ctx, c, "/apis/ext.example.com/v1/things/a")
		if err != nil {
			return err
		}
		return json.Unmarshal(body, &got)
	})
	if got.Path != "/apis/ext.example.com/v1/things/a" || got.User != "jane" || !got.Proven || got.Token != "" || !strings.Contains(strings.Join(got.Groups, " "), "dancers") {
		t.Errorf("the other server was asked by %+v", got)
	}
	within(t, func(ctx context.Context) error {
		found, err := c.Discovery().ServerResourcesForGroupVersion("ext.example.com/v1")
		if err == nil && found.APIResources[0].Kind != "Ext" {
			t.Errorf("discovery has %+v", found)
		}
		return err
	})
	for path, want := range map[string]string{
		"/openapi/v3": "apis/ext.example.com/v1", "/openapi/v3/apis/ext.example.com/v1": `"ext"`, "/openapi/v2": "extOp", "/apis": "ext.example.com",
	} {
		body, err := raw(t.Context(), c, path)
		if err != nil || !strings.Contains(string(body), want) {
			t.Errorf("%s lacks %s: %v", path, want, err)
		}
	}
}

// TestAServerThatHangsHoldsNobodyUp: discovery and OpenAPI of all other groups go on.
func TestAServerThatHangsHoldsNobodyUp(t *testing.T) {
	s := start(t)
	hang := make(chan struct{})
	defer close(hang)
	to := startExtension(t, s, hang)
	register(t, s, metav1.GroupVersion{Group: "ext.example.com", Version: "v1"}, to)
	api := registrations(t, s).ApiregistrationV1().APIServices()
	within(t, func(ctx context.Context) error {
		have, err := api.Get(ctx, "v1.ext.example.com", metav1.GetOptions{})
		if err == nil && !helper.IsAPIServiceConditionTrue(have, "") && len(have.Status.Conditions) == 0 {
			return errTold("it has no condition yet")
		}
		return err
	})
	c := admin(t, s)
	began := time.Now()
	for path, want := range map[string]string{"/apis": "apps", "/apis/apps/v1": "deployments", "/openapi/v3": "apis/apps/v1"} {
		body, err := raw(t.Context(), c, path)
		if err != nil || !strings.Contains(string(body), want) {
			t.Errorf("%s lacks %s: %v", path, want, err)
		}
	}
	t.Logf("answered in %v", time.Since(began))
	if _, err := raw(t.Context(), c, "/apis/ext.example.com/v1/things"); !apierrors.IsServiceUnavailable(err) {
		t.Errorf("the group itself: %v", err)
	}
}

type errTold string

func (e errTold) Error() string { return string(e) }

// TestMetricsCanBeTakenOver: metrics.k8s.io is served here until an APIService gives it to somebody
// else, and again when that is deleted.
func TestMetricsCanBeTakenOver(t *testing.T) {
	s := start(t)
	gv := metav1.GroupVersion{Group: "metrics.k8s.io", Version: "v1beta1"}
	c, api := admin(t, s), registrations(t, s).ApiregistrationV1().APIServices()
	served := func(kind string) {
		t.Helper()
		within(t, func(context.Context) error {
			list, err := c.Discovery().ServerResourcesForGroupVersion(gv.String())
			if err != nil {
				return err
			}
			for _, r := range list.APIResources {
				if r.Name == "nodes" && r.Kind == kind {
					return nil
				}
			}
			return errTold("nodes are not " + kind)
		})
	}
	served("NodeMetrics")
	within(t, func(ctx context.Context) error {
		_, err := api.Get(ctx, "v1beta1.metrics.k8s.io", metav1.GetOptions{})
		return err
	})
	to := startExtension(t, s, nil)
	register(t, s, gv, to)
	served("Ext")
	if err := api.Delete(t.Context(), "v1beta1.metrics.k8s.io", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	served("NodeMetrics")
}

// TestEveryVersionIsAnnounced: older clients, which ask for the list of groups, learn of the same ones as those that
// ask for all of discovery at once. storagemigration.k8s.io was not in that list, and had no APIService.
func TestEveryVersionIsAnnounced(t *testing.T) {
	s := start(t)
	c := admin(t, s)
	within(t, func(ctx context.Context) error {
		all, err := c.Discovery().ServerGroups() // asks for everything at once
		if err != nil {
			return err
		}
		body, err := raw(ctx, c, "/apis")
		if err != nil {
			return err
		}
		var list metav1.APIGroupList
		if err := json.Unmarshal(body, &list); err != nil {
			return err
		}
		announced := sets.New("v1") // in /api
		for _, g := range list.Groups {
			for _, v := range g.Versions {
				announced.Insert(v.GroupVersion)
			}
		}
		for _, g := range all.Groups {
			for _, v := range g.Versions {
				if !announced.Has(v.GroupVersion) {
					return errTold(v.GroupVersion + " is not in the list of groups")
				}
			}
		}
		return nil
	})
}
