package component

import (
	"testing"

	"k8s.io/component-base/metrics"
)

// TestHistogramsAreNativeToo: also in a program that was built without a version, as by `go build`, which panicked.
func TestHistogramsAreNativeToo(t *testing.T) {
	if err := NativeHistograms(); err != nil {
		t.Fatal(err)
	}
	h := metrics.NewHistogram(&metrics.HistogramOpts{Name: "h", Help: "A histogram.", Buckets: []float64{1, 2}})
	r := metrics.NewKubeRegistry()
	r.MustRegister(h)
	h.Observe(1)
	all, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	if len(all) != 1 || all[0].Metric[0].Histogram.Schema == nil || len(all[0].Metric[0].Histogram.Bucket) == 0 {
		t.Errorf("not in both forms: %v", all)
	}
}
