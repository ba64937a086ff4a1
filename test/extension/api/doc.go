// Package api is the group notes.wherry.dev, version v1, which the extension server in test/extension serves.
// +k8s:openapi-gen=true
// +k8s:openapi-model-package=dev.wherry.notes.v1
// +kubebuilder:object:generate=true
package api

//go:generate go run sigs.k8s.io/controller-tools/cmd/controller-gen@v0.23.0 object paths=.
//go:generate go tool openapi-gen --logtostderr --go-header-file /dev/null --output-dir . --output-pkg wherry.dev/test/extension/api --output-file zz_generated.openapi.go --output-model-name-file zz_generated.model_name.go --report-filename /dev/null wherry.dev/test/extension/api k8s.io/apimachinery/pkg/apis/meta/v1 k8s.io/apimachinery/pkg/runtime k8s.io/apimachinery/pkg/version
