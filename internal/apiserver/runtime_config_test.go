package apiserver

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"strings"
	"testing"

	autoscalingv2 "k8s.io/api/autoscaling/v2"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

// without is a change of a test's configuration.
func without(t *testing.T, apis string) func(*Config) {
	return func(c *Config) { given(t, c, "--runtime-config="+apis) }
}

// atLeast is what the server itself needs.
const atLeast = "/v1=true,discovery.k8s.io/v1=true,networking.k8s.io/v1=true,apiextensions.k8s.io/v1=true,apiregistration.k8s.io/v1=true"

// The messages are those of the library, behind the name of the flag, where it has one.
func TestRuntimeConfig(t *testing.T) {
	for flag, want := range map[string]string{
		"":                                      "",
		"api/all=true":                          "",
		"api/beta=false,api/alpha=false":        "",
		"api/all=false,api/ga=true":             "",
		"api/all=false," + atLeast:              "",
		"batch/v1=false":                        "",
		"batch/v1/jobs=false":                   "",
		"batch/v1/jobs=0,batch/v1=1":            "",
		"batch/v1":                              "",
		"metrics.k8s.io/v1beta1=false":          "",
		"api/all=false":                         "invalid runtime-config with only api/all=false",
		"api/all=maybe":                         "invalid value api/all=maybe",
		"batch/v1=maybe":                        "invalid value of batch/v1: maybe",
		"batch/v9=true":                         "group version batch/v9 that has not been registered",
		"batch/v1beta1=false":                   "",
		"internal.apiserver.k8s.io/v1alpha1=0":  "",
		"batch/v1beta1/cronjobs=false":          "",
		"batch/v1beta1=true":                    "this server does not have batch/v1beta1, and cannot switch it on; leave it out",
		"batch/v1beta1":                         "this server does not have batch/v1beta1",
		"batch/v1beta1/cronjobs=true":           "this server does not have batch/v1beta1",
		"batch/v1beta1=true,apps/v1beta2=true":  "this server does not have apps/v1beta2, batch/v1beta1, and",
		"example.com/v1=true,example.org/v1=1":  "unknown api groups example.com/v1,example.org/v1",
		"apps/v1/Deployments=false":             `invalid key apps/v1/Deployments: group/version/resource and resource is always lowercase plural, not "Deployments"`,
		"apps/v1/deployments/scale=false":       "runtime-config invalid key apps/v1/deployments/scale",
		"v1=false":                              "runtime-config invalid key v1",
		"/v1=false":                             "--runtime-config switches off /v1/namespaces, which is needed for what every cluster starts with; add /v1=true, and leave out /v1/namespaces=false",
		"/v1/services=false":                    "--runtime-config switches off /v1/services, which is needed for the service kubernetes",
		"api/all=false,/v1=true":                "switches off discovery.k8s.io/v1/endpointslices",
		"apiextensions.k8s.io/v1=false":         "switches off apiextensions.k8s.io/v1/customresourcedefinitions",
		"apiregistration.k8s.io/v1=false":       "switches off apiregistration.k8s.io/v1/apiservices",
		"networking.k8s.io/v1/ipaddresses=0":    "switches off networking.k8s.io/v1/ipaddresses",
		"networking.k8s.io/v1/ingresses=0":      "",
		"/v1/pods=false,/v1/configmaps/x=false": "runtime-config invalid key /v1/configmaps/x",
	} {
		cfg := DefaultConfig()
		given(t, &cfg, "--runtime-config="+flag)
		err := errors.Join(cfg.Validate()...)
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", flag, err, want)
		}
	}
	cfg := DefaultConfig()
	cfg.Required = []Required{{batchv1.SchemeGroupVersion.WithResource("jobs"), "the test"}}
	given(t, &cfg, "--runtime-config=batch/v1=false")
	if err := errors.Join(cfg.Validate()...); err == nil || !strings.Contains(err.Error(), "batch/v1/jobs, which is needed for the test") {
		t.Error(err)
	}
}

// status returns what a path answers, and with which code.
func status(t *testing.T, c kubernetes.Interface, path string) (code int, body string) {
	t.Helper()
	res := c.Discovery().RESTClient().Get().AbsPath(path).SetHeader("Accept", "application/json").Do(t.Context())
	text, _ := res.Raw()
	res.StatusCode(&code)
	return code, string(text)
}

func answers(t *testing.T, c kubernetes.Interface, want map[string]int) {
	t.Helper()
	for path, code := range want {
		if got, body := status(t, c, path); got != code {
			t.Errorf("GET %s: %d, want %d: %.300s", path, got, code, body)
		}
	}
}

// resourcesOf returns the names of what a version has, as discovery tells.
func resourcesOf(t *testing.T, c kubernetes.Interface, gv string) []string {
	t.Helper()
	list, err := c.Discovery().ServerResourcesForGroupVersion(gv)
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, r := range list.APIResources {
		out = append(out, r.Name)
	}
	return out
}

// What is switched off is not served, and is in no discovery and no OpenAPI document. What it stored is
// found when it is switched on again.
func TestAnAPIIsSwitchedOff(t *testing.T) {
	dir, ctx := t.TempDir(), t.Context()
	s, stop := run(t, dir)
	c := admin(t, s)
	job := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Name: "j"}, Spec: batchv1.JobSpec{Template: corev1.PodTemplateSpec{Spec: corev1.PodSpec{
		RestartPolicy: corev1.RestartPolicyNever, Containers: []corev1.Container{{Name: "c", Image: "i"}},
	}}}}
	if _, err := c.BatchV1().Jobs("default").Create(ctx, job, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	scaler := &autoscalingv2.HorizontalPodAutoscaler{ObjectMeta: metav1.ObjectMeta{Name: "h"}, Spec: autoscalingv2.HorizontalPodAutoscalerSpec{
		MaxReplicas: 3, ScaleTargetRef: autoscalingv2.CrossVersionObjectReference{APIVersion: "apps/v1", Kind: "StatefulSet", Name: "s"},
	}}
	if _, err := c.AutoscalingV2().HorizontalPodAutoscalers("default").Create(ctx, scaler, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() error {
		_, err := raw(ctx, c, "/apis/apiregistration.k8s.io/v1/apiservices/v1.batch")
		return err
	})
	stop()

	s, stop = run(t, dir, without(t, "batch/v1=false,apps/v1/deployments=false,autoscaling/v2=false,/v1/podtemplates=false,events.k8s.io/v1=false,api/beta=false"))
	c = admin(t, s)
	answers(t, c, map[string]int{
		"/apis/batch/v1": 404, "/apis/batch/v1/jobs": 404, "/apis/batch/v1/namespaces/default/jobs/j": 404,
		"/apis/apps/v1": 200, "/apis/apps/v1/deployments": 404, "/apis/apps/v1/namespaces/default/deployments/d/scale": 404, "/apis/apps/v1/statefulsets": 200,
		"/apis/autoscaling/v2/horizontalpodautoscalers": 404, "/apis/autoscaling/v1/namespaces/default/horizontalpodautoscalers/h": 200,
		"/api/v1/podtemplates": 404, "/api/v1/pods": 200, "/api/v1/events": 200, "/apis/events.k8s.io/v1/events": 404,
		"/openapi/v3/apis/batch/v1": 404, "/openapi/v3/apis/apps/v1": 200, "/apis/metrics.k8s.io/v1beta1": 200,
	})
	for _, path := range []string{"/openapi/v2", "/openapi/v3", "/openapi/v3/apis/apps/v1", "/openapi/v3/api/v1"} {
		_, body := status(t, c, path)
		for _, gone := range []string{"/batch/v1", "/deployments", "/autoscaling/v2/", "/podtemplates"} {
			if at := strings.Index(body, gone); at >= 0 {
				t.Errorf("%s has %.100s", path, body[max(0, at-40):])
			}
		}
	}
	if names := resourcesOf(t, c, "apps/v1"); slices.ContainsFunc(names, func(n string) bool { return strings.HasPrefix(n, "deployments") }) || !slices.Contains(names, "statefulsets/scale") {
		t.Error(names)
	}
	eventually(t, func() error { // the APIServices of an earlier run are removed after the start
		for _, path := range []string{"/apis/batch", "/apis/apiregistration.k8s.io/v1/apiservices/v1.batch"} {
			if code, body := status(t, c, path); code != http.StatusNotFound {
				return errors.New(path + ": " + body)
			}
		}
		return nil
	})
	groups, err := c.Discovery().ServerGroups()
	if err != nil {
		t.Fatal(err)
	}
	for _, g := range groups.Groups {
		if g.Name == "batch" || g.Name == "autoscaling" && g.PreferredVersion.Version != "v1" {
			t.Errorf("discovery has %+v", g)
		}
	}
	if got := aggregatedDiscovery(t, c); strings.Contains(got, `"batch"`) || strings.Contains(got, `"deployments"`) || !strings.Contains(got, `"statefulsets"`) {
		t.Errorf("aggregated discovery has what is switched off: %s", got)
	}
	if _, err := c.BatchV1().Jobs("default").Create(ctx, job, metav1.CreateOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("a job where there are none: %v", err)
	}
	stop()

	s, stop = run(t, dir)
	defer stop()
	c = admin(t, s)
	if _, err := c.BatchV1().Jobs("default").Get(ctx, "j", metav1.GetOptions{}); err != nil {
		t.Errorf("what was stored: %v", err)
	}
	if got, err := c.AutoscalingV2().HorizontalPodAutoscalers("default").Get(ctx, "h", metav1.GetOptions{}); err != nil || got.Spec.MaxReplicas != 3 {
		t.Errorf("what was stored: %v, %v", got, err)
	}
}

func aggregatedDiscovery(t *testing.T, c kubernetes.Interface) string {
	t.Helper()
	text, err := c.Discovery().RESTClient().Get().AbsPath("/apis").SetHeader("Accept", "application/json;v=v2;g=apidiscovery.k8s.io;as=APIGroupDiscoveryList").DoRaw(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if !json.Valid(text) || !strings.Contains(string(text), "APIGroupDiscoveryList") {
		t.Fatalf("%.200s", text)
	}
	return string(text)
}

// A server with nothing but what it needs itself starts and serves, on new data and on those of another.
func TestAsFewAPIsAsPossible(t *testing.T) {
	dir := t.TempDir()
	few := without(t, "api/all=false,"+atLeast)
	for range 2 {
		s, stop := run(t, dir, few)
		c := admin(t, s)
		within(t, func(ctx context.Context) error { // the hooks of the library take their time
			return c.Discovery().RESTClient().Get().AbsPath("/readyz").Do(ctx).Error()
		})
		answers(t, c, map[string]int{
			"/api/v1/namespaces/kube-system": 200, "/api/v1/namespaces/default/services/kubernetes": 200,
			"/apis/apps/v1/deployments": 404, "/apis/rbac.authorization.k8s.io/v1/clusterroles": 404, "/apis/scheduling.k8s.io/v1/priorityclasses": 404,
			"/apis/flowcontrol.apiserver.k8s.io/v1/flowschemas": 404, "/apis/admissionregistration.k8s.io/v1": 404,
			"/apis/authorization.k8s.io/v1": 404, "/apis/coordination.k8s.io/v1/leases": 404,
		})
		stop()
	}
	s, stop := run(t, dir)
	defer stop()
	answers(t, admin(t, s), map[string]int{
		"/apis/rbac.authorization.k8s.io/v1/clusterroles/cluster-admin": 200, "/apis/scheduling.k8s.io/v1/priorityclasses/system-node-critical": 200,
		"/apis/flowcontrol.apiserver.k8s.io/v1/flowschemas/exempt": 200,
	})
}

// What authorization reads is stored, so it holds even if nobody can change it.
func TestRightsHoldWithoutTheirAPI(t *testing.T) {
	dir := t.TempDir()
	_, stop := run(t, dir)
	stop()
	s, stop := run(t, dir, without(t, "rbac.authorization.k8s.io/v1=false"))
	defer stop()
	may := func(ctx context.Context, user string, groups ...string) error {
		_, err := clientFor(t, s.ClientConfig(user, groups...)).CoreV1().Pods("default").List(ctx, metav1.ListOptions{})
		return err
	}
	if err := may(t.Context(), "system:kube-scheduler"); err != nil {
		t.Error(err)
	}
	if err := may(t.Context(), "jane"); !apierrors.IsForbidden(err) {
		t.Error(err)
	}
}
