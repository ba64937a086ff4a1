package component

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"
)

// TestRefusalIsAnObject: a client that may not read the scheduler's metrics used to get an internal
// error about the refusal instead of the refusal.
func TestRefusalIsAnObject(t *testing.T) {
	w := httptest.NewRecorder()
	r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/metrics", nil)
	responsewriters.ErrorNegotiated(apierrors.NewForbidden(schema.GroupResource{}, "", nil), errorCodecs(), schema.GroupVersion{}, w, r)
	var status metav1.Status
	if err := json.Unmarshal(w.Body.Bytes(), &status); err != nil || w.Code != http.StatusForbidden || status.Kind != "Status" || status.Reason != metav1.StatusReasonForbidden {
		t.Errorf("%d %s, %v", w.Code, w.Body, err)
	}
}
