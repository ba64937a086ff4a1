package admission

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/admission"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/storage/names"
	watchtools "k8s.io/client-go/tools/watch"

	"wherry.dev/internal/api/pods"
	"wherry.dev/internal/apiserver/registry"
)

const (
	defaultAccount = "default"
	tokenVolume    = "kube-api-access"
	tokenPath      = "/var/run/secrets/kubernetes.io/serviceaccount"
	// tokenSeconds is a lifetime that only this plugin asks for, by which the token endpoint
	// recognizes such a request.
	tokenSeconds      = 3607
	rootCA            = "kube-root-ca.crt"
	enforceMountable  = "kubernetes.io/enforce-mountable-secrets"
	defaultAccountFor = 1500 * time.Millisecond
)

// serviceAccount gives every pod a service account, which must exist, and mounts its token.
type serviceAccount struct{ lookup *registry.Lookup }

var (
	_ admission.MutationInterface   = (*serviceAccount)(nil)
	_ admission.ValidationInterface = (*serviceAccount)(nil)
)

func (*serviceAccount) Handles(op admission.Operation) bool {
	return op == admission.Create || op == admission.Update
}

func (p *serviceAccount) Admit(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	pod, ok := podOf(a, admission.Create)
	if !ok {
		return nil
	}
	if pods.IsMirror(pod) {
		return nil
	}
	if pod.Spec.ServiceAccountName == "" {
		pod.Spec.ServiceAccountName = pod.Spec.DeprecatedServiceAccount
	}
	if pod.Spec.ServiceAccountName == "" {
		pod.Spec.ServiceAccountName = defaultAccount
	}
	pod.Spec.DeprecatedServiceAccount = pod.Spec.ServiceAccountName
	account, err := p.account(ctx, a, pod)
	if err != nil {
		return err
	}
	if automount(account, pod) {
		mountToken(pod)
	}
	if len(pod.Spec.ImagePullSecrets) == 0 {
		pod.Spec.ImagePullSecrets = slices.Clone(account.ImagePullSecrets)
	}
	return nil
}

func (p *serviceAccount) Validate(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	if pod, ok := debugged(a); ok {
		return p.validateSecrets(ctx, a, pod, ephemeralSecretRefs(pod), nil)
	}
	pod, ok := podOf(a, admission.Create)
	if !ok {
		return nil
	}
	if pods.IsMirror(pod) {
		return validateMirror(a, pod)
	}
	return p.validateSecrets(ctx, a, pod, secretRefs(pod), pod.Spec.ImagePullSecrets)
}

// debugged returns the pod of a request that adds ephemeral containers.
func debugged(a admission.Attributes) (*corev1.Pod, bool) {
	if a.GetResource().GroupResource() != podsResource || a.GetSubresource() != "ephemeralcontainers" || a.GetOperation() != admission.Update {
		return nil, false
	}
	pod, ok := a.GetObject().(*corev1.Pod)
	return pod, ok
}

// validateSecrets returns an error unless the pod's account exists and, if the account asks for
// that, lists all secrets that the pod uses.
func (p *serviceAccount) validateSecrets(ctx context.Context, a admission.Attributes, pod *corev1.Pod, refs []secretRef, pull []corev1.LocalObjectReference) error {
	if pod.Spec.ServiceAccountName == "" {
		return forbid(a, "no service account specified for pod %s/%s", a.GetNamespace(), pod.Name)
	}
	account, err := p.account(ctx, a, pod)
	if err != nil {
		return err
	}
	if enforce, err := strconv.ParseBool(account.Annotations[enforceMountable]); err != nil || !enforce {
		return nil //nolint:nilerr // anything but a clear yes means no
	}
	if err := onlyMountable(account, refs, pull); err != nil {
		return admission.NewForbidden(a, err)
	}
	return nil
}

// validateMirror returns an error if a mirror pod has an account of the API, or uses anything of
// the API.
func validateMirror(a admission.Attributes, pod *corev1.Pod) error {
	if pod.Spec.ServiceAccountName != "" {
		return forbid(a, "a mirror pod may not reference service accounts")
	}
	if len(secretRefs(pod)) > 0 {
		return forbid(a, "a mirror pod may not reference secrets")
	}
	for i := range pod.Spec.Volumes {
		if pr := pod.Spec.Volumes[i].Projected; pr != nil {
			for _, src := range pr.Sources {
				if src.ServiceAccountToken != nil {
					return forbid(a, "a mirror pod may not use ServiceAccountToken volume projections")
				}
			}
		}
	}
	return nil
}

// account returns the pod's account. The default one is created by a controller shortly after the
// namespace, so account waits for it.
func (p *serviceAccount) account(ctx context.Context, a admission.Attributes, pod *corev1.Pod) (*corev1.ServiceAccount, error) {
	namespace, name := a.GetNamespace(), pod.Spec.ServiceAccountName
	account, err := registry.Get[*corev1.ServiceAccount](ctx, p.lookup, accountsResource, namespace, name)
	if apierrors.IsNotFound(err) && name == defaultAccount {
		account, err = p.await(ctx, namespace, name)
	}
	if err != nil {
		if apierrors.IsNotFound(err) {
			err = apierrors.NewNotFound(corev1.Resource("serviceaccount"), name)
		}
		return nil, forbid(a, "error looking up service account %s/%s: %w", namespace, name, err)
	}
	return account, nil
}

func (p *serviceAccount) await(ctx context.Context, namespace, name string) (*corev1.ServiceAccount, error) {
	ctx, cancel := context.WithTimeout(genericapirequest.WithNamespace(ctx, namespace), defaultAccountFor)
	defer cancel()
	w, err := p.lookup.Store(accountsResource).Watch(ctx, &internalversion.ListOptions{
		FieldSelector:   fields.OneTermEqualSelector(metav1.ObjectNameField, name),
		ResourceVersion: "0",
	})
	if err != nil {
		return nil, err
	}
	// Whatever ended the wait: look again.
	_, _ = watchtools.UntilWithoutRetry(ctx, w, func(ev watch.Event) (bool, error) { return ev.Type != watch.Deleted, nil })
	return registry.Get[*corev1.ServiceAccount](context.WithoutCancel(ctx), p.lookup, accountsResource, namespace, name)
}

func automount(account *corev1.ServiceAccount, pod *corev1.Pod) bool {
	if m := pod.Spec.AutomountServiceAccountToken; m != nil {
		return *m
	}
	if m := account.AutomountServiceAccountToken; m != nil {
		return *m
	}
	return true
}

// mountToken mounts the token in every container that mounts nothing else at its path.
func mountToken(pod *corev1.Pod) {
	name, have := "", false
	for i := range pod.Spec.Volumes {
		if strings.HasPrefix(pod.Spec.Volumes[i].Name, tokenVolume+"-") {
			name, have = pod.Spec.Volumes[i].Name, true
			break
		}
	}
	if !have {
		name = names.SimpleNameGenerator.GenerateName(tokenVolume + "-")
	}
	needed := false
	for c := range pods.Containers(&pod.Spec) {
		taken := slices.ContainsFunc(c.VolumeMounts, func(m corev1.VolumeMount) bool { return m.MountPath == tokenPath })
		if taken {
			continue
		}
		c.VolumeMounts = append(c.VolumeMounts, corev1.VolumeMount{Name: name, ReadOnly: true, MountPath: tokenPath})
		needed = true
	}
	if needed && !have {
		pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{
			Name: name, VolumeSource: corev1.VolumeSource{Projected: tokenSource()},
		})
	}
}

// tokenSource is what a program in a pod needs to talk to the API: the token, the CA
// and the name of its namespace.
func tokenSource() *corev1.ProjectedVolumeSource {
	return &corev1.ProjectedVolumeSource{
		DefaultMode: new(corev1.ProjectedVolumeSourceDefaultMode),
		Sources: []corev1.VolumeProjection{
			{ServiceAccountToken: &corev1.ServiceAccountTokenProjection{Path: "token", ExpirationSeconds: new(int64(tokenSeconds))}},
			{ConfigMap: &corev1.ConfigMapProjection{
				LocalObjectReference: corev1.LocalObjectReference{Name: rootCA},
				Items:                []corev1.KeyToPath{{Key: "ca.crt", Path: "ca.crt"}},
			}},
			{DownwardAPI: &corev1.DownwardAPIProjection{Items: []corev1.DownwardAPIVolumeFile{{
				Path:     "namespace",
				FieldRef: &corev1.ObjectFieldSelector{APIVersion: "v1", FieldPath: "metadata.namespace"},
			}}}},
		},
	}
}

// onlyMountable returns an error if a pod uses a secret that its account does not list.
func onlyMountable(account *corev1.ServiceAccount, refs []secretRef, pull []corev1.LocalObjectReference) error {
	listed := func(name string) bool {
		return slices.ContainsFunc(account.Secrets, func(r corev1.ObjectReference) bool { return r.Name == name })
	}
	for _, ref := range refs {
		if ref.pull || listed(ref.name) {
			continue
		}
		return fmt.Errorf("%s secret.secretName=%q is not allowed because service account %s does not reference that secret", ref.where, ref.name, account.Name)
	}
	for i, ref := range pull {
		if !slices.Contains(account.ImagePullSecrets, ref) {
			return fmt.Errorf("imagePullSecrets[%d].name=%q is not allowed because service account %s does not reference that imagePullSecret", i, ref.Name, account.Name)
		}
	}
	return nil
}

// secretRef is a secret that a pod uses, and where.
type secretRef struct {
	name, where string
	pull        bool
}

// secretRefs returns the secrets that a new pod uses.
func secretRefs(pod *corev1.Pod) []secretRef {
	var refs []secretRef
	for _, ref := range pod.Spec.ImagePullSecrets {
		refs = append(refs, secretRef{name: ref.Name, pull: true})
	}
	for i := range pod.Spec.Volumes {
		v := &pod.Spec.Volumes[i]
		if v.Secret != nil {
			refs = append(refs, secretRef{name: v.Secret.SecretName, where: "volume with"})
		}
		if v.Projected != nil {
			for _, src := range v.Projected.Sources {
				if src.Secret != nil {
					refs = append(refs, secretRef{name: src.Secret.Name, where: "volume with"})
				}
			}
		}
	}
	for i := range pod.Spec.InitContainers {
		refs = append(refs, containerSecretRefs("init container", &pod.Spec.InitContainers[i])...)
	}
	for i := range pod.Spec.Containers {
		refs = append(refs, containerSecretRefs("container", &pod.Spec.Containers[i])...)
	}
	return refs
}

// ephemeralSecretRefs returns the secrets that ephemeral containers use.
func ephemeralSecretRefs(pod *corev1.Pod) []secretRef {
	var refs []secretRef
	for i := range pod.Spec.EphemeralContainers {
		c := corev1.Container(pod.Spec.EphemeralContainers[i].EphemeralContainerCommon)
		refs = append(refs, containerSecretRefs("ephemeral container", &c)...)
	}
	return refs
}

func containerSecretRefs(kind string, c *corev1.Container) []secretRef {
	var refs []secretRef
	for _, env := range c.Env {
		if env.ValueFrom != nil && env.ValueFrom.SecretKeyRef != nil {
			refs = append(refs, secretRef{name: env.ValueFrom.SecretKeyRef.Name, where: fmt.Sprintf("%s %s with envVar %s referencing", kind, c.Name, env.Name)})
		}
	}
	for _, from := range c.EnvFrom {
		if from.SecretRef != nil {
			refs = append(refs, secretRef{name: from.SecretRef.Name, where: fmt.Sprintf("%s %s with envFrom referencing", kind, c.Name)})
		}
	}
	return refs
}
