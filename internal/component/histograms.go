package component

import (
	"k8s.io/component-base/featuregate"
	metricsfeatures "k8s.io/component-base/metrics/features"
	kubeversion "k8s.io/component-base/version"

	"k8s.io/apimachinery/pkg/util/version"
)

// NativeHistograms has histograms also in the form of Prometheus' native ones (KEP-5808, on since Kubernetes 1.37), for
// who asks for metrics in protobuf. It is for the start of a program, before anything is measured.
func NativeHistograms() error {
	gates := featuregate.NewVersionedFeatureGate(version.MustParse(kubeversion.DefaultKubeBinaryVersion))
	if err := metricsfeatures.AddFeatureGates(gates); err != nil {
		return err
	}
	metricsfeatures.ApplyFeatureGates(gates)
	return nil
}
