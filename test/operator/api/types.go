// Package api is the group shop.wherry.dev, version v1, as an operator's authors write it. The manifests in
// ../config/crd and ../config/webhook are made of it.
// +groupName=shop.wherry.dev
// +versionName=v1
// +kubebuilder:object:generate=true
package api

//go:generate go run sigs.k8s.io/controller-tools/cmd/controller-gen@v0.23.0 object crd webhook paths=../... output:crd:dir=../config/crd output:webhook:dir=../config/webhook

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// GroupVersion is what the types are served as.
var GroupVersion = schema.GroupVersion{Group: "shop.wherry.dev", Version: "v1"}

// AddToScheme makes the types known to a client.
func AddToScheme(s *runtime.Scheme) error {
	s.AddKnownTypes(GroupVersion, &Shop{}, &ShopList{})
	metav1.AddToGroupVersion(s, GroupVersion)
	return nil
}

// Shop is a web server that its operator runs as a Deployment.
// +kubebuilder:object:root=true
// +kubebuilder:storageversion
// +kubebuilder:subresource:status
// +kubebuilder:subresource:scale:specpath=.spec.replicas,statuspath=.status.readyReplicas
// +kubebuilder:resource:shortName=sh
// +kubebuilder:printcolumn:name="Replicas",type=integer,JSONPath=`.spec.replicas`
// +kubebuilder:printcolumn:name="Ready",type=integer,JSONPath=`.status.readyReplicas`
// +kubebuilder:printcolumn:name="Greeting",type=string,priority=1,JSONPath=`.spec.greeting`
type Shop struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec   ShopSpec   `json:"spec,omitempty"`
	Status ShopStatus `json:"status,omitempty"`
}

// Hub makes this the version that all others are converted from and to.
func (*Shop) Hub() {}

// ShopSpec is what the shop's owner wants.
type ShopSpec struct {
	// Greeting is what the shop's web page says; a welcome by default.
	// +kubebuilder:validation:MinLength=1
	// +optional
	Greeting string `json:"greeting,omitempty"`
	// Replicas is how many web servers there are.
	// +kubebuilder:default=1
	// +kubebuilder:validation:Minimum=0
	// +optional
	Replicas *int32 `json:"replicas,omitempty"`
}

// ShopStatus is what the operator has seen.
type ShopStatus struct {
	// ObservedGeneration is the generation that the status is about.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// ReadyReplicas is how many web servers are ready.
	// +optional
	ReadyReplicas int32 `json:"readyReplicas,omitempty"`
	// Conditions has Ready.
	// +listType=map
	// +listMapKey=type
	// +optional
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// ShopList is a list of shops.
// +kubebuilder:object:root=true
type ShopList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []Shop `json:"items"`
}
