package sim

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	kubeletconfig "k8s.io/kubelet/config/v1beta1"

	"wherry.dev/internal/kubelet/credential"
	"wherry.dev/internal/kubelet/objectcache"
	"wherry.dev/internal/kubelet/pullrecord"
)

// plugged is the password that the credential provider plugin gives.
const plugged = "plugged"

// authorize returns the registries' answer to a pull.
func authorize(image string, auth *runtimeapi.AuthConfig) error {
	want := ""
	switch image {
	case imagePrivate:
		want = right
	case imagePlugin:
		want = plugged
	default:
		return nil
	}
	if auth.GetUsername() == pullUser && auth.GetPassword() == want {
		return nil
	}
	return fmt.Errorf("%s: %w", image, errUnauthorized)
}

// passwords returns all that a pod has ever had for the private registry.
func (l *life) passwords(pod *v1.Pod) []string {
	var out []string
	for _, s := range pod.Spec.ImagePullSecrets {
		for _, data := range l.objects.since(ref(objectcache.Secret, s.Name), dawn) {
			if p := data[pullPassword]; p != "" {
				out = append(out, p)
			}
		}
	}
	return out
}

// entitled reports whether a pod has, or once had, what the private registry wants.
func (l *life) entitled(pod *v1.Pod) bool { return slices.Contains(l.passwords(pod), right) }

// inspectPull checks that a pull shows only credentials that its pod has for this registry.
func (l *life) inspectPull(image string, auth *runtimeapi.AuthConfig, uid string) error {
	pod := l.known(uid)
	if pod == nil || auth == nil {
		return nil
	}
	registry, _, _ := strings.Cut(image, "/")
	ok := false
	switch registry {
	case privateRegistry:
		ok = slices.Contains(l.passwords(pod), auth.Password)
	case pluginRegistry:
		ok = auth.Password == plugged
	}
	if !ok || auth.Username != pullUser {
		return fmt.Errorf("%s is pulled as %s with %q, which its pod does not have", image, auth.Username, auth.Password)
	}
	return nil
}

// plugin is the node's credential provider plugin, as one life of the kubelet sees it.
type plugin struct{ n *node }

// For is called for each image that a pod wants.
func (p plugin) For(ctx context.Context, pod *v1.Pod, image string) []credential.Credential {
	if registry, _, _ := strings.Cut(image, "/"); registry != pluginRegistry {
		return nil
	}
	out, err := call(ctx, p.n, "plugin", image, func(context.Context) ([]credential.Credential, error) {
		return []credential.Credential{{Pattern: pluginRegistry, Username: pullUser, Password: plugged, Account: &v1.ServiceAccount{
			ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Spec.ServiceAccountName, UID: "account"},
		}}}, nil
	})
	if err != nil {
		return nil // a plugin that fails is logged
	}
	return out
}

// pullRecords are the node's records of pulls; a kubelet that was killed writes no more of them.
type pullRecords struct {
	*pullrecord.Records
	n *node
}

func (r pullRecords) unlessDead(f func() error) error {
	select {
	case <-r.n.dead:
		return errDead
	default:
		return f()
	}
}

func (r pullRecords) Begin(image string) error {
	return r.unlessDead(func() error { return r.Records.Begin(image) })
}

func (r pullRecords) Failed(image string) error {
	return r.unlessDead(func() error { return r.Records.Failed(image) })
}

func (r pullRecords) Pulled(image, id string, with pullrecord.Access) error {
	return r.unlessDead(func() error { return r.Records.Pulled(image, id, with) })
}

// verification decides how the node verifies credentials for images that it already has, and how
// the private image got there, if it did.
func (l *life) verification(pod *v1.Pod) {
	l.rt.Authorize = authorize
	l.rt.Publish(imagePlugin)
	l.rt.Publish(imagePrivate)
	often := 0.2
	if len(pod.Spec.ImagePullSecrets) > 0 {
		often = 0.8
	}
	l.open = true // nobody verifies; if the image is missing, the registry does
	if l.chance(often) {
		l.policy = pick(l.r, kubeletconfig.NeverVerify, kubeletconfig.NeverVerifyAllowlistedImages, kubeletconfig.NeverVerifyPreloadedImages,
			kubeletconfig.NeverVerifyPreloadedImages, kubeletconfig.AlwaysVerify, kubeletconfig.AlwaysVerify, kubeletconfig.AlwaysVerify)
		l.open = l.policy == kubeletconfig.NeverVerify || l.policy == kubeletconfig.NeverVerifyAllowlistedImages
	}
	if !l.chance(often) {
		return
	}
	l.rt.AddImage(imagePrivate)
	if l.policy == "" {
		return
	}
	records, err := l.records()
	if err != nil {
		l.hist.fail(err)
		return
	}
	id := "sha256:" + imagePrivate
	switch l.r.IntN(4) {
	case 0: // an administrator put it there
		l.open = l.open || l.policy == kubeletconfig.NeverVerifyPreloadedImages
	case 1: // anybody could pull it at that time
		l.open = true
		err = records.Pulled(imagePrivate, id, pullrecord.Access{})
	default: // another pod pulled it
		err = records.Pulled(imagePrivate, id, pullrecord.Access{Secret: &kubeletconfig.ImagePullSecret{
			UID: "other", Namespace: "other", Name: pullRight, CredentialHash: "other",
		}})
	}
	l.hist.fail(err)
}

func (l *life) records() (*pullrecord.Records, error) {
	return pullrecord.Open(filepath.Join(l.dir, "images"), l.policy, []string{privateRegistry + "/*"})
}

// changeObject changes, removes or makes an object that a pod may refer to.
func (l *life) changeObject() {
	r := pick(l.r, ref(objectcache.ConfigMap, configOne), ref(objectcache.ConfigMap, configTwo), ref(objectcache.Secret, secretOne),
		ref(objectcache.Secret, pullRight), ref(objectcache.Secret, pullLate))
	_, n := l.objects.now(r)
	gone := l.chance(0.25)
	switch {
	case gone:
		l.objects.put(r, nil)
	case r.Name == pullRight:
		l.objects.put(r, pullConfig(map[string]string{privateRegistry: right, "elsewhere.example": wrong}))
	case r.Name == pullLate:
		l.objects.put(r, pullConfig(map[string]string{privateRegistry: wrong}))
	default:
		l.objects.put(r, data(r.Name, n, l.chance(0.5)))
	}
	l.note("%s changes; it is there: %t", r, !gone)
}

// firstObjects exist from the beginning.
func (l *life) firstObjects() {
	for _, r := range []objectcache.Ref{ref(objectcache.ConfigMap, configOne), ref(objectcache.ConfigMap, configTwo), ref(objectcache.Secret, secretOne)} {
		if l.chance(0.7) {
			l.objects.put(r, data(r.Name, 0, l.chance(0.5)))
		}
	}
	if l.chance(0.8) {
		l.objects.put(ref(objectcache.Secret, pullRight), pullConfig(map[string]string{privateRegistry: right}))
	}
	l.objects.put(ref(objectcache.Secret, pullWrong), pullConfig(map[string]string{privateRegistry: wrong}))
}

// lastObjects makes everything that was missing for a while.
func (l *life) lastObjects() {
	for _, r := range []objectcache.Ref{ref(objectcache.ConfigMap, configOne), ref(objectcache.ConfigMap, configTwo), ref(objectcache.Secret, secretOne)} {
		_, n := l.objects.now(r)
		l.objects.put(r, data(r.Name, n, true))
	}
	for _, name := range []string{pullRight, pullLate} {
		l.objects.put(ref(objectcache.Secret, name), pullConfig(map[string]string{privateRegistry: right}))
	}
	l.calmSince.Store(int64(time.Since(dawn)))
}
