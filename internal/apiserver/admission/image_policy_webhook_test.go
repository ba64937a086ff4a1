package admission

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	imagepolicyv1alpha1 "k8s.io/api/imagepolicy/v1alpha1"
	"k8s.io/apiserver/pkg/admission"
)

// imagePolicy returns the plugin with a webhook that allows images named good, and counts what it is
// asked.
func imagePolicy(t *testing.T, config string, asked *[]string) admission.ValidationInterface {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var review imagepolicyv1alpha1.ImageReview
		if err := json.NewDecoder(r.Body).Decode(&review); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		if review.APIVersion != "imagepolicy.k8s.io/v1alpha1" || review.Kind != "ImageReview" {
			http.Error(w, "of another kind", http.StatusBadRequest)
			return
		}
		review.Status.Allowed = true
		for _, c := range review.Spec.Containers {
			*asked = append(*asked, c.Image)
			switch c.Image {
			case "good":
			case "broken":
				http.Error(w, "out of order", http.StatusForbidden)
				return
			default:
				review.Status.Allowed, review.Status.Reason = false, c.Image+" is not good"
			}
		}
		review.Status.AuditAnnotations = map[string]string{"seen": fmt.Sprint(review.Spec.Annotations)}
		w.Header().Set("Content-Type", "application/json")
		if err := json.NewEncoder(w).Encode(&review); err != nil {
			t.Error(err)
		}
	}))
	t.Cleanup(server.Close)
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	doc := `{apiVersion: v1, kind: Config, current-context: c, contexts: [{name: c, context: {cluster: c}}], clusters: [{name: c, cluster: {server: "` + server.URL + `"}}]}`
	if err := os.WriteFile(kubeconfig, []byte(doc), 0o600); err != nil {
		t.Fatal(err)
	}
	p, err := newImagePolicyWebhook(strings.NewReader("imagePolicy: {kubeConfigFile: " + kubeconfig + ", " + config + "}"))
	if err != nil {
		t.Fatal(err)
	}
	v, ok := p.(admission.ValidationInterface)
	if !ok {
		t.Fatalf("%T", p)
	}
	return v
}

func podWithImages(images ...string) *corev1.Pod {
	return podOn("", func(p *corev1.Pod) {
		for _, image := range images {
			p.Spec.Containers = append(p.Spec.Containers, corev1.Container{Image: image})
		}
	})
}

func TestImagesAreReviewed(t *testing.T) {
	var asked []string
	p := imagePolicy(t, "retryBackoff: 1", &asked)
	for _, tc := range []struct {
		pod  *corev1.Pod
		want string
	}{
		{podWithImages("good"), ""},
		{podWithImages("good"), ""}, // remembered
		{podWithImages("good", "bad"), "image policy webhook backend denied one or more images: bad is not good"},
	} {
		a := attributes(nodeN1, admission.Create, podsResource, "", tc.pod, nil)
		wantRefusal(t, a, p.Validate(t.Context(), a, nil), tc.want)
	}
	if got := strings.Join(asked, " "); got != "good good bad" {
		t.Errorf("asked for %q", got)
	}
	a := attributes(nodeN1, admission.Create, podsResource, "", podWithImages("broken"), nil)
	if err := p.Validate(t.Context(), a, nil); err == nil || !strings.Contains(err.Error(), "out of order") {
		t.Errorf("a webhook that fails: %v", err)
	}
	asked = nil
	debugged := podWithImages("bad")
	debugged.Spec.EphemeralContainers = []corev1.EphemeralContainer{{EphemeralContainerCommon: corev1.EphemeralContainerCommon{Image: "good"}}}
	a = attributes(nodeN1, admission.Update, podsResource, "ephemeralcontainers", debugged, debugged)
	wantRefusal(t, a, p.Validate(t.Context(), a, nil), "")
}

func TestImagePolicyMayFailOpen(t *testing.T) {
	var asked []string
	p := imagePolicy(t, "defaultAllow: true, retryBackoff: 1", &asked)
	a := attributes(nodeN1, admission.Create, podsResource, "", podWithImages("broken"), nil)
	wantRefusal(t, a, p.Validate(t.Context(), a, nil), "")
}

func TestImagePolicyTimesAreChecked(t *testing.T) {
	for config, want := range map[string]string{
		"allowTTL: 1801":       "imagePolicy.allowTTL: valid value is between 1s and 30m0s, got 30m1s",
		"denyTTL: -2":          "imagePolicy.denyTTL: valid value is between 1s and 30m0s, got -2s",
		"retryBackoff: 300001": "imagePolicy.retryBackoff: valid value is between 1ns and 5m0s, got 5m0.001s",
		"kubeConfigFile: /no":  "imagePolicy.kubeConfigFile: ",
	} {
		_, err := newImagePolicyWebhook(strings.NewReader("imagePolicy: {" + config + "}"))
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", config, err, want)
		}
	}
	if _, err := newImagePolicyWebhook(nil); err == nil {
		t.Error("no configuration is accepted")
	}
}
