package pullrecord

import (
	"os"
	"path/filepath"
	"testing"

	kubeletconfig "k8s.io/kubelet/config/v1beta1"
)

func open(t *testing.T, dir string, policy kubeletconfig.ImagePullCredentialsVerificationPolicy, allow ...string) *Records {
	t.Helper()
	r, err := Open(dir, policy, allow)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func secret(uid, hash string) Access {
	return Access{Secret: &kubeletconfig.ImagePullSecret{UID: uid, Namespace: "ns", Name: "s", CredentialHash: hash}}
}

func account(uid string) Access {
	return Access{Account: &kubeletconfig.ImagePullServiceAccount{UID: uid, Namespace: "ns", Name: "a"}}
}

func (r *Records) must(t *testing.T, image string, shown ...Access) bool {
	t.Helper()
	pull, err := r.MustPull(image, "id", func() ([]Access, error) { return shown, nil })
	if err != nil {
		t.Fatal(err)
	}
	return pull
}

func pull(t *testing.T, r *Records, with Access) {
	t.Helper()
	if err := r.Begin(image); err != nil {
		t.Fatal(err)
	}
	if err := r.Pulled(image, "id", with); err != nil {
		t.Fatal(err)
	}
}

const image = "registry.io/team/app:1"

func TestOnlyWhoCouldPullMayUse(t *testing.T) {
	r := open(t, t.TempDir(), kubeletconfig.NeverVerifyPreloadedImages)
	if r.must(t, image) {
		t.Error("a preloaded image is to be pulled")
	}
	pull(t, r, secret("1", "h1"))
	for name, tc := range map[string]struct {
		image string
		shown []Access
		want  bool
	}{
		"nothing":                       {image, nil, true},
		"the secret":                    {image, []Access{secret("9", "x"), secret("1", "h1")}, false},
		"the secret, changed":           {image, []Access{secret("1", "h2")}, false},
		"another with the same content": {image, []Access{secret("2", "h1")}, false},
		"another":                       {image, []Access{secret("3", "h3")}, true},
		"the account":                   {image, []Access{account("a1")}, false},
		"another account":               {image, []Access{account("a2")}, true},
		"by another name":               {"mirror.io/app:1", []Access{secret("1", "h1")}, true},
		"by another tag":                {"registry.io/team/app:2", []Access{secret("1", "h1")}, false},
	} {
		dir := t.TempDir()
		first := open(t, dir, kubeletconfig.NeverVerifyPreloadedImages)
		pull(t, first, secret("1", "h1"))
		pull(t, first, account("a1"))
		r := open(t, dir, kubeletconfig.NeverVerifyPreloadedImages) // as after a restart
		if got := r.must(t, tc.image, tc.shown...); got != tc.want {
			t.Errorf("%s: %v", name, got)
		}
	}
	pull(t, r, Access{})
	if r.must(t, image) || r.must(t, "mirror.io/app:1") {
		t.Error("what anybody can pull is to be pulled")
	}
	if err := r.Forget("id", r.Mark()); err != nil || r.must(t, image) {
		t.Errorf("a removed image is remembered: %v", err)
	}
}

func TestWhatWasCutOffIsNobodys(t *testing.T) {
	dir := t.TempDir()
	r := open(t, dir, kubeletconfig.NeverVerifyPreloadedImages)
	for range 2 {
		if err := r.Begin(image); err != nil {
			t.Fatal(err)
		}
	}
	if err := r.Failed(image); err != nil {
		t.Fatal(err)
	}
	if !open(t, dir, kubeletconfig.NeverVerifyPreloadedImages).must(t, image, secret("1", "h")) {
		t.Error("an image whose pull was cut off counts as preloaded")
	}
	if err := r.Failed(image); err != nil || r.must(t, image) {
		t.Errorf("a pull that failed left its intent: %v", err)
	}
	pull(t, r, secret("1", "h"))
	if err := os.WriteFile(fileOf(filepath.Join(dir, "pulled"), "id"), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if !r.must(t, image, secret("1", "h")) {
		t.Error("a damaged record lets anybody in")
	}
}

func TestPolicies(t *testing.T) {
	for policy, want := range map[kubeletconfig.ImagePullCredentialsVerificationPolicy]bool{
		kubeletconfig.NeverVerify: false, kubeletconfig.NeverVerifyPreloadedImages: true, kubeletconfig.AlwaysVerify: true,
	} {
		dir := t.TempDir()
		r := open(t, dir, policy)
		if got := r.must(t, image); got != (policy == kubeletconfig.AlwaysVerify) {
			t.Errorf("%s: preloaded: %v", policy, got)
		}
		pull(t, r, secret("1", "h"))
		if got := r.must(t, image); got != want {
			t.Errorf("%s: pulled: %v", policy, got)
		}
	}
	r := open(t, t.TempDir(), kubeletconfig.NeverVerifyAllowlistedImages, "registry.io/team/*", "busybox")
	for name, want := range map[string]bool{image: false, "busybox:1": false, "registry.io/other/app": true, "registry.io/teams/app": true} {
		if got := r.must(t, name); got != want {
			t.Errorf("%s: %v", name, got)
		}
	}
	for _, bad := range []string{"", "/*", "*", "a*b", "app:1", "registry.io/*/app"} {
		if _, err := Open(t.TempDir(), kubeletconfig.NeverVerifyAllowlistedImages, []string{bad}); err == nil {
			t.Errorf("%q was taken", bad)
		}
	}
	if _, err := Open(t.TempDir(), "Sometimes", nil); err == nil {
		t.Error("a policy that nobody knows was taken")
	}
}

// TestDamagedRecord: a damaged record gives nobody access to the image, and the next pull writes a
// new one.
func TestDamagedRecord(t *testing.T) {
	dir := t.TempDir()
	r := open(t, dir, kubeletconfig.NeverVerifyPreloadedImages)
	pull(t, r, secret("1", "h1"))
	if err := os.WriteFile(fileOf(r.pulled, "id"), []byte(`{"imageRef":`), 0o600); err != nil {
		t.Fatal(err)
	}
	r = open(t, dir, kubeletconfig.NeverVerifyPreloadedImages)
	if !r.must(t, image, secret("1", "h1")) {
		t.Error("a record that cannot be read let somebody in")
	}
	pull(t, r, secret("1", "h1"))
	if r.must(t, image, secret("1", "h1")) {
		t.Error("the pull did not write a new record")
	}
}

// TestForgottenWithTheImage: a record goes with its image, unless a pull has brought the image back
// meanwhile: without a record everybody could use it.
func TestForgottenWithTheImage(t *testing.T) {
	r := open(t, t.TempDir(), kubeletconfig.NeverVerifyPreloadedImages)
	mark := r.Mark()
	pull(t, r, secret("1", "h"))
	for _, forget := range []func() error{
		func() error { return r.Forget("id", mark) },
		func() error { return r.Retain(nil, mark) },
		func() error { return r.Retain([]string{"id"}, r.Mark()) },
	} {
		if err := forget(); err != nil || !r.must(t, image) {
			t.Errorf("the record of an image that is there is gone, %v", err)
		}
	}
	kept := filepath.Join(r.pulled, "temp_"+filepath.Base(fileOf("", "id")))
	if err := os.WriteFile(kept, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := r.Retain([]string{"other"}, r.Mark()); err != nil || r.must(t, image) {
		t.Errorf("the record of an image that is gone is there, %v", err)
	}
	if _, err := os.Stat(kept); err != nil {
		t.Errorf("what somebody keeps beside the records: %v", err)
	}
}
