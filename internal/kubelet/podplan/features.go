package podplan

import (
	"fmt"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/version"
	ndf "k8s.io/component-helpers/nodedeclaredfeatures"
)

// admitFeatures refuses a pod that needs what this node does not declare (KEP-5328).
func admitFeatures(in AdmitInput) (string, string) {
	needs, err := ndf.DefaultFramework.InferForPodScheduling(featureInfo(in.Pod), kubeletVersion(in.Node))
	if err != nil {
		return reasonFeature, fmt.Sprintf("Failed to infer pod's feature requirements: %v", err)
	}
	missing, err := missingFeatures(needs, in.Node)
	if err != nil {
		return reasonFeature, err.Error()
	}
	if missing != "" {
		return reasonFeature, missing
	}
	return "", ""
}

// UpdateNeeds names the features that an update of a pod's spec needs and the node does not
// declare. The result is empty if there are none.
func UpdateNeeds(before, after *v1.Pod, node *v1.Node) (string, error) {
	// An adopted pod, known only from the runtime, has no spec to compare with.
	if len(before.Spec.Containers) != len(after.Spec.Containers) || len(before.Spec.InitContainers) != len(after.Spec.InitContainers) {
		return "", nil
	}
	needs, err := ndf.DefaultFramework.InferForPodUpdate(featureInfo(before), featureInfo(after), kubeletVersion(node))
	if err != nil {
		return "", fmt.Errorf("infer required features for pod update: %w", err)
	}
	return missingFeatures(needs, node)
}

func featureInfo(pod *v1.Pod) *ndf.PodInfo { return &ndf.PodInfo{Spec: &pod.Spec, Status: &pod.Status} }

func kubeletVersion(node *v1.Node) *version.Version {
	v, err := version.ParseGeneric(node.Status.NodeInfo.KubeletVersion)
	if err != nil {
		return version.MajorMinor(0, 0) // of a kubelet of unknown version, assume nothing
	}
	return v
}

func missingFeatures(needs ndf.FeatureSet, node *v1.Node) (string, error) {
	match, err := ndf.DefaultFramework.MatchNode(needs, node)
	if err != nil {
		return "", fmt.Errorf("Failed to match pod's feature requirements against the node: %w", err) //nolint:staticcheck // users read it as it is
	}
	if match.IsMatch {
		return "", nil
	}
	return "Pod requires node features that are not available: " + strings.Join(match.UnsatisfiedRequirements, ", "), nil
}
