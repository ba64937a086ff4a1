package validation

import (
	"reflect"
	"unicode"
	"unicode/utf8"

	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metavalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
)

// templateMeta checks the metadata of what claims are made from: labels and annotations, and nothing else.
func (p *problems) templateMeta(at path, meta *metav1.ObjectMeta) {
	p.addAll(apivalidation.ValidateAnnotations(meta.Annotations, at.Child("annotations")))
	p.addAll(metavalidation.ValidateLabels(meta.Labels, at.Child("labels")))
	fields := reflect.ValueOf(*meta)
	for i := range fields.NumField() {
		name := fields.Type().Field(i).Name
		if name == "Labels" || name == "Annotations" || fields.Field(i).IsZero() {
			continue
		}
		first, n := utf8.DecodeRuneInString(name)
		p.forbidden(at.Child(string(unicode.ToLower(first))+name[n:]), "cannot be set")
	}
}
