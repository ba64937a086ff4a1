package bootstrap

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"wherry.dev/internal/api/classes"
)

// localStorageMade is a config map in kube-system. It says that the class of local volumes was made once: from then on it
// is the administrator's, who may delete it, change it, or make another one the default.
const localStorageMade = "wherry-local-storage"

// ensureLocalStorage makes the class of local volumes, and what has the scheduler look at the nodes' room for them.
func (o *Objects) ensureLocalStorage(ctx context.Context) error {
	marks := o.cfg.Client.CoreV1().ConfigMaps(metav1.NamespaceSystem)
	_, err := marks.Get(ctx, localStorageMade, metav1.GetOptions{})
	if err == nil {
		return nil
	}
	if !apierrors.IsNotFound(err) {
		return fmt.Errorf("config map %s: %w", localStorageMade, err)
	}
	all, err := o.cfg.Client.StorageV1().StorageClasses().List(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("list storage classes: %w", err)
	}
	if err := ensure(ctx, localClass(all.Items), o.cfg.Client.StorageV1().StorageClasses()); err != nil {
		return err
	}
	if err := ensure(ctx, localDriver(), o.cfg.Client.StorageV1().CSIDrivers()); err != nil {
		return err
	}
	return ensure(ctx, &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: localStorageMade, Namespace: metav1.NamespaceSystem},
		Data:       map[string]string{"storageclass": classes.LocalStorage},
	}, marks)
}

// localClass returns the class, which is the default unless the cluster has one.
func localClass(others []storagev1.StorageClass) *storagev1.StorageClass {
	class := &storagev1.StorageClass{
		ObjectMeta:        metav1.ObjectMeta{Name: classes.LocalStorage},
		Provisioner:       classes.LocalProvisioner,
		ReclaimPolicy:     new(corev1.PersistentVolumeReclaimDelete),
		VolumeBindingMode: new(storagev1.VolumeBindingWaitForFirstConsumer),

		AllowVolumeExpansion: new(true),
	}
	for i := range others {
		if classes.IsDefaultStorage(&others[i]) {
			return class
		}
	}
	class.Annotations = map[string]string{classes.StorageDefault: "true"}
	return class
}

// localDriver returns the object by which the scheduler knows that only nodes with room come into question. There is no
// driver behind it: volumes of the class are of the kind local.
func localDriver() *storagev1.CSIDriver {
	return &storagev1.CSIDriver{
		ObjectMeta: metav1.ObjectMeta{Name: classes.LocalProvisioner},
		Spec: storagev1.CSIDriverSpec{
			AttachRequired: new(false), PodInfoOnMount: new(false), StorageCapacity: new(true),
			VolumeLifecycleModes: []storagev1.VolumeLifecycleMode{storagev1.VolumeLifecyclePersistent},
		},
	}
}
