// Package v1alpha1 is the first version of the group shop.wherry.dev. It is still served, and stored as v1.
// +groupName=shop.wherry.dev
// +kubebuilder:object:generate=true
package v1alpha1

import (
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/conversion"

	"wherry.dev/test/operator/api"
)

// GroupVersion is what the types are served as.
var GroupVersion = schema.GroupVersion{Group: "shop.wherry.dev", Version: "v1alpha1"}

// AddToScheme makes the types known to a client.
func AddToScheme(s *runtime.Scheme) error {
	s.AddKnownTypes(GroupVersion, &Shop{}, &ShopList{})
	metav1.AddToGroupVersion(s, GroupVersion)
	return nil
}

// Shop is a web server that its operator runs as a Deployment.
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
type Shop struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec   ShopSpec       `json:"spec,omitempty"`
	Status api.ShopStatus `json:"status,omitempty"`
}

// ShopSpec is what the shop's owner wants.
type ShopSpec struct {
	// Message is what the shop's web page says.
	// +optional
	Message string `json:"message,omitempty"`
	// Size is how many web servers there are.
	// +kubebuilder:validation:Minimum=0
	// +optional
	Size *int32 `json:"size,omitempty"`
}

// ShopList is a list of shops.
// +kubebuilder:object:root=true
type ShopList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []Shop `json:"items"`
}

// ConvertTo writes the shop into one of v1.
func (s *Shop) ConvertTo(hub conversion.Hub) error {
	to, ok := hub.(*api.Shop)
	if !ok {
		return fmt.Errorf("a shop cannot become a %T", hub)
	}
	to.ObjectMeta, to.Status = s.ObjectMeta, s.Status
	to.Spec = api.ShopSpec{Greeting: s.Spec.Message, Replicas: s.Spec.Size}
	return nil
}

// ConvertFrom takes the shop over from one of v1.
func (s *Shop) ConvertFrom(hub conversion.Hub) error {
	from, ok := hub.(*api.Shop)
	if !ok {
		return fmt.Errorf("a %T cannot become a shop", hub)
	}
	s.ObjectMeta, s.Status = from.ObjectMeta, from.Status
	s.Spec = ShopSpec{Message: from.Spec.Greeting, Size: from.Spec.Replicas}
	return nil
}
