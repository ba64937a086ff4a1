package registry

import (
	networkingv1 "k8s.io/api/networking/v1"
	storagev1 "k8s.io/api/storage/v1"
)

// IsDefaultClass reports whether claims that name no class get c. Administrators and charts set
// either annotation, the old one too.
func IsDefaultClass(c *storagev1.StorageClass) bool {
	return c.Annotations["storageclass.kubernetes.io/is-default-class"] == "true" ||
		c.Annotations["storageclass.beta.kubernetes.io/is-default-class"] == "true"
}

// IsDefaultIngressClass reports whether ingresses that name no class get c.
func IsDefaultIngressClass(c *networkingv1.IngressClass) bool {
	return c.Annotations[networkingv1.AnnotationIsDefaultIngressClass] == "true"
}
