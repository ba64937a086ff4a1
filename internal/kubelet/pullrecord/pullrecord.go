// Package pullrecord remembers with whose credentials images were pulled, so that a pod cannot use
// an image that is on the node but that it could not pull itself (KEP-2535). Records outlive the
// kubelet; their format is upstream's.
//
// A pull that is about to begin leaves an intent before it has any effect: an image whose pull was
// interrupted counts as pulled by a kubelet, with unknown credentials.
package pullrecord

import (
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/distribution/reference"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kubeletconfig "k8s.io/kubelet/config/v1beta1"

	"wherry.dev/internal/record"
)

// matchLimit is how many secrets a record may reach by adding another one that a pod shows and that
// fits.
const matchLimit = 100

// Access is the credential that a pull was made with, or that a pod has. The zero value is one that
// every pod of the node has.
type Access struct {
	Secret  *kubeletconfig.ImagePullSecret
	Account *kubeletconfig.ImagePullServiceAccount
}

// Records of one node. They are safe for concurrent use.
type Records struct {
	pulling, pulled string // directories
	policy          kubeletconfig.ImagePullCredentialsVerificationPolicy
	allow           []string

	mu      sync.Mutex
	intents map[string]int // pulls in flight, by image
	// writes counts the writes of records; written has, by file, the number of the newest one.
	writes  uint64
	written map[string]uint64
}

// Open creates the directories and checks the policy.
func Open(dir string, policy kubeletconfig.ImagePullCredentialsVerificationPolicy, allow []string) (*Records, error) {
	switch policy {
	case kubeletconfig.NeverVerify, kubeletconfig.NeverVerifyPreloadedImages, kubeletconfig.NeverVerifyAllowlistedImages, kubeletconfig.AlwaysVerify:
	default:
		return nil, fmt.Errorf("unknown imagePullCredentialsVerificationPolicy %q", policy)
	}
	for _, p := range allow {
		if err := checkPattern(p); err != nil {
			return nil, fmt.Errorf("preloadedImagesVerificationAllowlist: %w", err)
		}
	}
	r := &Records{
		pulling: filepath.Join(dir, "pulling"), pulled: filepath.Join(dir, "pulled"), policy: policy, allow: allow, intents: map[string]int{}, written: map[string]uint64{},
	}
	for _, d := range []string{r.pulling, r.pulled} {
		if err := os.MkdirAll(d, 0o700); err != nil {
			return nil, err
		}
		if err := record.Sweep(d); err != nil {
			return nil, err
		}
	}
	return r, nil
}

// checkPattern requires an image's name without tag and digest, or a prefix followed by "/*".
func checkPattern(p string) error {
	name, wild := strings.CutSuffix(p, "/*")
	switch trimmed, err := Name(name); {
	case name == "" || strings.ContainsAny(name, "* "):
		return fmt.Errorf("%q is neither an image name nor a prefix that ends with /*", p)
	case !wild && err != nil:
		return fmt.Errorf("%q: %w", p, err)
	case !wild && trimmed != name:
		return fmt.Errorf("%q must not have a tag or digest", p)
	}
	return nil
}

// Name returns an image's name without tag and digest.
func Name(image string) (string, error) {
	named, err := reference.ParseNormalizedNamed(image)
	if err != nil {
		return "", err
	}
	if d, ok := named.(reference.Digested); ok {
		image = strings.TrimSuffix(image, "@"+d.Digest().String())
	}
	if t, ok := named.(reference.Tagged); ok {
		image = strings.TrimSuffix(image, ":"+t.Tag())
	}
	return image, nil
}

func fileOf(dir, name string) string {
	return filepath.Join(dir, fmt.Sprintf("%s%x", filePrefix, sha256.Sum256([]byte(name))))
}

const filePrefix = "sha256-"

var meta = metav1.TypeMeta{APIVersion: kubeletconfig.SchemeGroupVersion.String()}

// Begin records that an image is about to be pulled.
func (r *Records) Begin(image string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	intent := kubeletconfig.ImagePullIntent{TypeMeta: meta, Image: image}
	intent.Kind = "ImagePullIntent"
	if err := write(fileOf(r.pulling, image), intent); err != nil {
		return fmt.Errorf("record the pull of %s: %w", image, err)
	}
	r.intents[image]++
	return nil
}

// Failed takes back an intent.
func (r *Records) Failed(image string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.endLocked(image)
}

// Pulled records the credential an image was pulled with; id is the runtime's name for the image.
func (r *Records) Pulled(image, id string, with Access) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.addLocked(image, id, with); err != nil {
		return err // the intent stays, and stands for a pull with unknown credentials
	}
	return r.endLocked(image)
}

func (r *Records) endLocked(image string) error {
	if r.intents[image]--; r.intents[image] > 0 {
		return nil
	}
	delete(r.intents, image)
	return remove(fileOf(r.pulling, image))
}

// Mark returns a moment, for Forget and Retain.
func (r *Records) Mark() uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.writes
}

// Forget removes what is recorded about an image that was removed after mark. What a pull recorded since
// then stays: without a record the image that it brought would count as one that nobody pulled.
func (r *Records) Forget(id string, mark uint64) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.forgetLocked(fileOf(r.pulled, id), mark)
}

// Retain forgets all images but those that were on the node at mark.
func (r *Records) Retain(ids []string, mark uint64) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	keep := map[string]bool{}
	for _, id := range ids {
		keep[fileOf(r.pulled, id)] = true
	}
	files, err := os.ReadDir(r.pulled)
	if err != nil {
		return err
	}
	for _, f := range files {
		path := filepath.Join(r.pulled, f.Name())
		if keep[path] || !strings.HasPrefix(f.Name(), filePrefix) { // what else is there is no record
			continue
		}
		if err := r.forgetLocked(path, mark); err != nil {
			return err
		}
	}
	return nil
}

func (r *Records) forgetLocked(path string, mark uint64) error {
	if r.written[path] > mark {
		return nil
	}
	delete(r.written, path)
	return remove(path)
}

func remove(path string) error {
	if err := record.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

func (r *Records) addLocked(image, id string, with Access) error {
	name, err := Name(image)
	if err != nil {
		return err
	}
	rec, _, err := r.readLocked(id)
	if err != nil { // a record that cannot be read lets nobody in, and is replaced
		rec = newRecord()
	}
	creds := rec.CredentialMapping[name]
	switch {
	case creds.NodePodsAccessible:
		r.noteLocked(id)
		return nil
	case with.Secret != nil:
		creds.KubernetesSecrets = addSecret(creds.KubernetesSecrets, *with.Secret)
	case with.Account != nil:
		if slices.Contains(creds.KubernetesServiceAccounts, *with.Account) {
			r.noteLocked(id)
			return nil
		}
		creds.KubernetesServiceAccounts = append(creds.KubernetesServiceAccounts, *with.Account)
	default:
		creds = kubeletconfig.ImagePullCredentials{NodePodsAccessible: true}
	}
	rec.ImageRef, rec.LastUpdatedTime = id, metav1.NewTime(time.Now().UTC())
	if rec.CredentialMapping == nil {
		rec.CredentialMapping = map[string]kubeletconfig.ImagePullCredentials{}
	}
	rec.CredentialMapping[name] = creds
	r.noteLocked(id)
	return write(fileOf(r.pulled, id), rec)
}

// noteLocked notes that what is recorded of an image holds from now on.
func (r *Records) noteLocked(id string) {
	r.writes++
	r.written[fileOf(r.pulled, id)] = r.writes
}

// addSecret adds a secret, or replaces its earlier version.
func addSecret(list []kubeletconfig.ImagePullSecret, s kubeletconfig.ImagePullSecret) []kubeletconfig.ImagePullSecret {
	list = slices.DeleteFunc(slices.Clone(list), func(o kubeletconfig.ImagePullSecret) bool { return sameSecret(o, s) })
	return append(list, s)
}

func sameSecret(a, b kubeletconfig.ImagePullSecret) bool {
	return a.UID == b.UID && a.Namespace == b.Namespace && a.Name == b.Name
}

func newRecord() kubeletconfig.ImagePulledRecord {
	rec := kubeletconfig.ImagePulledRecord{TypeMeta: meta}
	rec.Kind = "ImagePulledRecord"
	return rec
}

func (r *Records) readLocked(id string) (rec kubeletconfig.ImagePulledRecord, known bool, err error) {
	data, err := os.ReadFile(fileOf(r.pulled, id))
	if errors.Is(err, fs.ErrNotExist) {
		return newRecord(), false, nil
	}
	if err == nil {
		err = json.Unmarshal(data, &rec)
	}
	return rec, true, err
}

func write(path string, v any) error {
	data, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return record.WriteFile(path, data, 0o600)
}

// MustPull reports whether a pod has to pull an image that is on the node, to prove that it may use
// it. has returns the pod's credentials, and is called only if they matter.
func (r *Records) MustPull(image, id string, has func() ([]Access, error)) (bool, error) {
	if r.policy == kubeletconfig.NeverVerify {
		return false, nil
	}
	r.mu.Lock()
	rec, known, err := r.readLocked(id)
	_, statErr := os.Stat(fileOf(r.pulling, image))
	r.mu.Unlock()
	if err != nil {
		return true, nil //nolint:nilerr // a record that cannot be read lets nobody in
	}
	if !r.verifies(image, known || statErr == nil) {
		return false, nil
	}
	name, err := Name(image)
	if err != nil {
		return true, nil //nolint:nilerr // the pull says what is wrong with the name
	}
	for _, c := range rec.CredentialMapping {
		if c.NodePodsAccessible {
			return false, nil // anybody may use the same content, under any name
		}
	}
	creds := rec.CredentialMapping[name]
	if len(creds.KubernetesSecrets)+len(creds.KubernetesServiceAccounts) == 0 {
		return true, nil
	}
	shown, err := has()
	if err != nil {
		return true, err
	}
	return !r.fits(image, id, creds, shown), nil
}

// verifies reports whether the policy requires pods to show their credentials.
func (r *Records) verifies(image string, byKubelet bool) bool {
	switch r.policy {
	case kubeletconfig.NeverVerifyPreloadedImages:
		return byKubelet
	case kubeletconfig.NeverVerifyAllowlistedImages:
		name, err := Name(image)
		if err != nil {
			name = image
		}
		return !slices.ContainsFunc(r.allow, func(p string) bool {
			folder, wild := strings.CutSuffix(p, "*")
			return p == name || wild && strings.HasPrefix(name, folder)
		})
	default:
		return true
	}
}

// fits reports whether a pod shows the credential that an image was pulled with: the same secret,
// even if its content has changed since, the same content in another secret, or the same service
// account. What is new about it is recorded.
func (r *Records) fits(image, id string, creds kubeletconfig.ImagePullCredentials, shown []Access) bool {
	for _, a := range shown {
		if a.Account != nil && slices.Contains(creds.KubernetesServiceAccounts, *a.Account) {
			return true
		}
		if a.Secret == nil {
			continue
		}
		for _, s := range creds.KubernetesSecrets {
			content, place := s.CredentialHash != "" && s.CredentialHash == a.Secret.CredentialHash, sameSecret(s, *a.Secret)
			if !content && !place {
				continue
			}
			if content != place && len(creds.KubernetesSecrets) < matchLimit {
				r.mu.Lock()
				_ = r.addLocked(image, id, a) // if that fails, it is only looked up again
				r.mu.Unlock()
			}
			return true
		}
	}
	return false
}
