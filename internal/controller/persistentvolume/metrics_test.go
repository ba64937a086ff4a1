package persistentvolume

import (
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"

	v1 "k8s.io/api/core/v1"
	"k8s.io/component-base/metrics/legacyregistry"
)

func TestMetricsCountClaimsAndVolumes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start(t, nil, newClaim("c"), newClaim("d", ofNamedClass("x")), newVolume("v"), newVolume("w", inClass("fast"), csi, block), newVolume("x", isOf("gone"), is(v1.VolumeReleased)))
		w := httptest.NewRecorder()
		legacyregistry.Handler().ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), "GET", "/metrics", nil))
		for _, want := range []string{
			`pv_collector_bound_pv_count{storage_class=""} 1`,
			`pv_collector_unbound_pv_count{storage_class=""} 1`,
			`pv_collector_unbound_pv_count{storage_class="fast"} 1`,
			`pv_collector_bound_pvc_count{namespace="ns",storage_class="",volume_attributes_class=""} 1`,
			`pv_collector_unbound_pvc_count{namespace="ns",storage_class="x",volume_attributes_class=""} 1`,
			`pv_collector_total_pv_count{plugin_name="kubernetes.io/nfs",volume_mode="Filesystem"} 2`,
			`pv_collector_total_pv_count{plugin_name="kubernetes.io/csi:d",volume_mode="Block"} 1`,
		} {
			if !strings.Contains(w.Body.String(), want+"\n") {
				t.Errorf("there is no %s", want)
			}
		}
	})
}
