package hooks

import (
	"fmt"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/admission/initializer"
	policyloader "k8s.io/apiserver/pkg/admission/plugin/policy/manifest/loader"
	policymutating "k8s.io/apiserver/pkg/admission/plugin/policy/mutating"
	policyvalidating "k8s.io/apiserver/pkg/admission/plugin/policy/validating"
	webhookloader "k8s.io/apiserver/pkg/admission/plugin/webhook/manifest/loader"
	"k8s.io/apiserver/pkg/admission/plugin/webhook/mutating"
	"k8s.io/apiserver/pkg/admission/plugin/webhook/validating"
	"sigs.k8s.io/yaml"
)

// staticDir returns the folder with objects that a plugin's configuration names, "" for none (KEP-5793). They are in force
// before anything is served, and nobody changes them by the API.
func staticDir(config []byte) (string, error) {
	var c struct {
		StaticManifestsDir string `json:"staticManifestsDir"`
	}
	err := yaml.Unmarshal(config, &c)
	return c.StaticManifestsDir, err
}

// loaders read the objects of such folders, and read them again when they change. One that is wrong is an error at the start;
// later the objects before it stay in force.
func (h *Hooks) loaders() *initializer.ManifestLoaders {
	decoder := h.cfg.Files
	return &initializer.ManifestLoaders{
		LoadValidatingWebhookManifests: func(dir string) ([]*admissionv1.ValidatingWebhookConfiguration, string, error) {
			return webhookloader.LoadManifests(dir, decoder, accepted[*admissionv1.ValidatingWebhookConfiguration](h))
		},
		LoadMutatingWebhookManifests: func(dir string) ([]*admissionv1.MutatingWebhookConfiguration, string, error) {
			return webhookloader.LoadManifests(dir, decoder, accepted[*admissionv1.MutatingWebhookConfiguration](h))
		},
		LoadValidatingPolicyManifests: func(dir string) ([]*admissionv1.ValidatingAdmissionPolicy, []*admissionv1.ValidatingAdmissionPolicyBinding, string, error) {
			return policyloader.LoadPolicyManifests(dir, decoder, accepted[*admissionv1.ValidatingAdmissionPolicy](h),
				accepted[*admissionv1.ValidatingAdmissionPolicyBinding](h),
				func(b *admissionv1.ValidatingAdmissionPolicyBinding) string { return b.Spec.PolicyName })
		},
		LoadMutatingPolicyManifests: func(dir string) ([]*admissionv1.MutatingAdmissionPolicy, []*admissionv1.MutatingAdmissionPolicyBinding, string, error) {
			return policyloader.LoadPolicyManifests(dir, decoder, accepted[*admissionv1.MutatingAdmissionPolicy](h),
				accepted[*admissionv1.MutatingAdmissionPolicyBinding](h),
				func(b *admissionv1.MutatingAdmissionPolicyBinding) string { return b.Spec.PolicyName })
		},
	}
}

// tryLoad returns what is wrong with the objects of a plugin's folder.
func (h *Hooks) tryLoad(plugin, dir string) (err error) {
	load := h.loaders()
	switch plugin {
	case validating.PluginName:
		_, _, err = load.LoadValidatingWebhookManifests(dir)
	case mutating.PluginName:
		_, _, err = load.LoadMutatingWebhookManifests(dir)
	case policyvalidating.PluginName:
		_, _, _, err = load.LoadValidatingPolicyManifests(dir)
	case policymutating.PluginName:
		_, _, _, err = load.LoadMutatingPolicyManifests(dir)
	}
	return err
}

// accepted returns how objects of one kind, or a list of them, are taken over: with their defaults, and checked.
func accepted[T interface {
	metav1.Object
	runtime.Object
}](h *Hooks) func(runtime.Object) ([]T, error) {
	return func(obj runtime.Object) ([]T, error) {
		all := []runtime.Object{obj}
		if meta.IsListType(obj) {
			var err error
			if all, err = meta.ExtractList(obj); err != nil {
				return nil, err
			}
		}
		out := make([]T, 0, len(all))
		for _, o := range all {
			t, ok := o.(T)
			if !ok {
				return nil, fmt.Errorf("%w: %T", policyloader.ErrUnrecognizedType, obj)
			}
			h.cfg.Default(t)
			if errs := h.cfg.Check(t); len(errs) > 0 {
				return nil, fmt.Errorf("%s: %w", t.GetName(), errs.ToAggregate())
			}
			out = append(out, t)
		}
		return out, nil
	}
}
