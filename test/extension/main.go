// Extension is an API server as users write them with k8s.io/apiserver: it serves one kind, Note, in a group
// of its own, behind an APIService. It keeps notes in memory, and asks the cluster's API server who its
// clients are (or takes the front proxy's word) and what they may do.
package main

import (
	"context"
	"fmt"
	"os"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apiserver/pkg/endpoints/openapi"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/server/options"
	"k8s.io/apiserver/pkg/util/compatibility"
	ctrl "sigs.k8s.io/controller-runtime"

	"wherry.dev/test/extension/api"
)

func main() {
	if err := run(ctrl.SetupSignalHandler()); err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	scheme := runtime.NewScheme()
	if err := api.AddToScheme(scheme); err != nil {
		return err
	}
	v1 := schema.GroupVersion{Version: "v1"}
	metav1.AddToGroupVersion(scheme, v1)
	scheme.AddUnversionedTypes(v1, &metav1.Status{}, &metav1.APIVersions{}, &metav1.APIGroupList{}, &metav1.APIGroup{}, &metav1.APIResourceList{})
	codecs := serializer.NewCodecFactory(scheme)
	cfg, err := configure(scheme, codecs)
	if err != nil {
		return err
	}
	s, err := cfg.Complete().New("notes", server.NewEmptyDelegate())
	if err != nil {
		return err
	}
	group := server.NewDefaultAPIGroupInfo(api.GroupVersion.Group, scheme, runtime.NewParameterCodec(scheme), codecs)
	group.VersionedResourcesStorageMap["v1"] = map[string]rest.Storage{"notes": newNotes()}
	if err := s.InstallAPIGroup(&group); err != nil {
		return err
	}
	return s.PrepareRun().RunWithContext(ctx)
}

// configure returns the usual configuration, but for the storage.
func configure(scheme *runtime.Scheme, codecs serializer.CodecFactory) (*server.RecommendedConfig, error) {
	o := options.NewRecommendedOptions("", nil)
	o.Etcd = nil
	o.Features.EnablePriorityAndFairness = false // one client, the front proxy, which has it
	o.SecureServing.BindPort = 8443
	o.SecureServing.ServerCert.CertDirectory = "" // the certificate stays in memory
	if err := o.SecureServing.MaybeDefaultWithSelfSignedCerts("notes.notes.svc", nil, nil); err != nil {
		return nil, err
	}
	cfg := server.NewRecommendedConfig(codecs)
	cfg.EffectiveVersion = compatibility.DefaultBuildEffectiveVersion()
	names := openapi.NewDefinitionNamer(scheme)
	cfg.OpenAPIConfig = server.DefaultOpenAPIConfig(api.GetOpenAPIDefinitions, names)
	cfg.OpenAPIV3Config = server.DefaultOpenAPIV3Config(api.GetOpenAPIDefinitions, names)
	return cfg, o.ApplyTo(cfg)
}
