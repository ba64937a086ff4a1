package volumes

import (
	"fmt"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	csitranslation "k8s.io/csi-translation-lib"
	csiplugins "k8s.io/csi-translation-lib/plugins"
	"k8s.io/klog/v2"
)

// translator knows the CSI drivers that have taken over from Kubernetes' own kinds of volumes.
var translator = csitranslation.New()

// takenOver are the kinds of volumes whose drivers the scheduler takes into account.
var takenOver = []string{
	csiplugins.AWSEBSInTreePluginName, csiplugins.GCEPDInTreePluginName, csiplugins.AzureDiskInTreePluginName,
	csiplugins.CinderInTreePluginName, csiplugins.PortworxVolumePluginName,
}

// onNode returns a volume as the node sees it: as one of a CSI driver if the node says that this has taken over. Such
// a volume's node affinity may have other labels.
func onNode(pv *v1.PersistentVolume, csiNode *storagev1.CSINode) (*v1.PersistentVolume, error) {
	if csiNode == nil || !translator.IsPVMigratable(pv) {
		return pv, nil
	}
	plugin, err := translator.GetInTreePluginNameFromSpec(pv, nil)
	if err != nil {
		return nil, fmt.Errorf("could not get plugin name from pv: %w", err)
	}
	onThisNode := strings.Split(csiNode.Annotations[v1.MigratedPluginsAnnotationKey], ",")
	if !slices.Contains(takenOver, plugin) || !slices.Contains(onThisNode, plugin) {
		return pv, nil
	}
	there, err := translator.TranslateInTreePVToCSI(klog.Background(), pv)
	if err != nil {
		return nil, fmt.Errorf("could not translate pv: %w", err)
	}
	return there, nil
}
