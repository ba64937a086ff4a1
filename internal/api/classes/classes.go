// Package classes says which class counts for those that name none, or when several could.
package classes

import (
	"cmp"
	"iter"

	networkingv1 "k8s.io/api/networking/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// StorageDefault is the annotation that makes a storage class the default.
const StorageDefault = "storageclass.kubernetes.io/is-default-class"

// The storage class that clusters of Wherry's start with, and who makes its volumes: the node that the claim's first pod
// runs on (package localvolume). The provisioner's name is that of its CSIDriver too, and has no slash therefore.
const (
	LocalStorage     = "local"
	LocalProvisioner = "local.wherry.dev"
)

// IsDefaultStorage reports whether claims that name no class get c. Administrators and charts set
// either annotation, the old one too.
func IsDefaultStorage(c *storagev1.StorageClass) bool {
	return c.Annotations[StorageDefault] == "true" || c.Annotations["storageclass.beta.kubernetes.io/is-default-class"] == "true"
}

// IsDefaultIngress reports whether ingresses that name no class get c.
func IsDefaultIngress(c *networkingv1.IngressClass) bool {
	return c.Annotations[networkingv1.AnnotationIsDefaultIngressClass] == "true"
}

// Newest returns the class of those asked for that was created last, and whether there is one. Among classes created in
// the same second, the first by name wins. It is what counts if several are the default, or mean the same.
func Newest[C metav1.Object](all iter.Seq[C], among func(C) bool) (newest C, ok bool) {
	for c := range all {
		if among(c) && (!ok || before(newest, c)) {
			newest, ok = c, true
		}
	}
	return newest, ok
}

// before reports whether class a has to stand back behind b.
func before(a, b metav1.Object) bool {
	at := b.GetCreationTimestamp()
	return cmp.Or(at.Compare(a.GetCreationTimestamp().Time), cmp.Compare(a.GetName(), b.GetName())) > 0
}
