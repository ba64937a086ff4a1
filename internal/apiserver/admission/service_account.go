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
	"k8s.io/apiserver/pkg/admission"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/storage/names"

	"wherry.dev/internal/apiserver/registry"
)

const (
	defaultAccount = "default"
	tokenVolume    = "kube-api-access"
	tokenPath      = "/var/run/secrets/kubernetes.io/serviceaccount"
	// tokenSeconds tells the token endpoint that this token is one of ours.
	tokenSeconds      = 3607
	rootCA            = "kube-root-ca.crt"
	enforceMountable  = "kubernetes.io/enforce-mountable-secrets"
	defaultAccountFor = 1500 * time.Millisecond
)

// serviceAccount gives every pod a service account that exists, and mounts its token.
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
	if isMirror(pod) {
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
	pod, ok := podOf(a, admission.Create)
	if !ok {
		return nil
	}
	if isMirror(pod) {
		return validateMirror(a, pod)
	}
	if pod.Spec.ServiceAccountName == "" {
		return forbid(a, "no service account specified for pod %s/%s", a.GetNamespace(), pod.Name)
	}
	account, err := p.account(ctx, a, pod)
	if err != nil {
		return err
	}
	if enforce, err := strconv.ParseBool(account.Annotations[enforceMountable]); err == nil && enforce {
		if err := onlyMountable(account, pod); err != nil {
			return admission.NewForbidden(a, err)
		}
	}
	return nil
}

func isMirror(pod *corev1.Pod) bool {
	_, ok := pod.Annotations[corev1.MirrorPodAnnotationKey]
	return ok
}

// validateMirror: a node's own pod has no account of the API and uses nothing of it.
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

// account finds the pod's account. The default one is made by a controller shortly
// after the namespace: it is waited for.
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
	defer w.Stop()
	select {
	case <-w.ResultChan(): // the account, or the end of the watch: look once more
	case <-ctx.Done():
	}
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

// mountToken mounts the token in every container that has nothing at its place.
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
	for _, containers := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range containers {
			c := &containers[i]
			taken := slices.ContainsFunc(c.VolumeMounts, func(m corev1.VolumeMount) bool { return m.MountPath == tokenPath })
			if taken {
				continue
			}
			c.VolumeMounts = append(c.VolumeMounts, corev1.VolumeMount{Name: name, ReadOnly: true, MountPath: tokenPath})
			needed = true
		}
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

// onlyMountable holds a pod to the secrets that its account lists, where the account
// asks for that.
func onlyMountable(account *corev1.ServiceAccount, pod *corev1.Pod) error {
	listed := func(name string) bool {
		return slices.ContainsFunc(account.Secrets, func(r corev1.ObjectReference) bool { return r.Name == name })
	}
	for _, ref := range secretRefs(pod) {
		if ref.pull || listed(ref.name) {
			continue
		}
		return fmt.Errorf("%s secret.secretName=%q is not allowed because service account %s does not reference that secret", ref.where, ref.name, account.Name)
	}
	for i, ref := range pod.Spec.ImagePullSecrets {
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
	add := func(kind string, c *corev1.Container) {
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
	}
	for i := range pod.Spec.InitContainers {
		add("init container", &pod.Spec.InitContainers[i])
	}
	for i := range pod.Spec.Containers {
		add("container", &pod.Spec.Containers[i])
	}
	return refs
}
