package api

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// GroupVersion is what the types are served as.
var GroupVersion = schema.GroupVersion{Group: "notes.wherry.dev", Version: "v1"}

// AddToScheme makes the types known, as they are served and, unchanged, inside the server.
func AddToScheme(s *runtime.Scheme) error {
	inside := schema.GroupVersion{Group: GroupVersion.Group, Version: runtime.APIVersionInternal}
	s.AddKnownTypes(GroupVersion, &Note{}, &NoteList{})
	s.AddKnownTypes(inside, &Note{}, &NoteList{})
	metav1.AddToGroupVersion(s, GroupVersion)
	return s.SetVersionPriority(GroupVersion)
}

// Note is something to remember.
// +kubebuilder:object:root=true
type Note struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// Text is what the note says.
	// +optional
	Text string `json:"text,omitempty"`
}

// NoteList is a list of notes.
// +kubebuilder:object:root=true
type NoteList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []Note `json:"items"`
}
