package podops

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"

	"wherry.dev/internal/kubelet/criconfig"
	"wherry.dev/internal/kubelet/volume"
)

// TestFileKeys reads environment files that an init container wrote, and other things that a pod
// may have put in their place.
func TestFileKeys(t *testing.T) {
	o := New(Config{}, Deps{Volumes: &volume.Mounter{Dirs: criconfig.Dirs{Root: t.TempDir()}}})
	pod := &v1.Pod{Spec: v1.PodSpec{Volumes: []v1.Volume{{Name: "v", VolumeSource: v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{}}}}}}
	pod.UID = "u"
	dir, err := o.Volumes.Path(pod, &pod.Spec.Volumes[0])
	if err != nil {
		t.Fatal(err)
	}
	outside := filepath.Join(t.TempDir(), "secret")
	for path, text := range map[string]string{
		filepath.Join(dir, "d/env"): "A='1'\nEMPTY=''\n", outside: "A='secret'\n", filepath.Join(dir, "big"): strings.Repeat("#\n", maxEnvFile), filepath.Join(dir, "bad"): "A=1\n",
	} {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := unix.Mkfifo(filepath.Join(dir, "pipe"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(outside, filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		sel   v1.FileKeySelector
		value string
		want  string // part of the error
	}{
		"there":            {sel: v1.FileKeySelector{VolumeName: "v", Path: "d/env", Key: "A"}, value: "1"},
		"no key":           {sel: v1.FileKeySelector{VolumeName: "v", Path: "d/env", Key: "B"}, want: `environment variable key "B" not found in file "d/env"`},
		"empty":            {sel: v1.FileKeySelector{VolumeName: "v", Path: "d/env", Key: "EMPTY"}, want: "not found in file"},
		"optional key":     {sel: v1.FileKeySelector{VolumeName: "v", Path: "d/env", Key: "B", Optional: new(true)}},
		"no file":          {sel: v1.FileKeySelector{VolumeName: "v", Path: "x", Key: "A"}, want: "couldn't parse env file"},
		"optional file":    {sel: v1.FileKeySelector{VolumeName: "v", Path: "x", Key: "A", Optional: new(true)}},
		"no volume":        {sel: v1.FileKeySelector{VolumeName: "w", Path: "x", Key: "A", Optional: new(true)}, want: `cannot find the volume "w" referenced by FileKeyRef`},
		"not in the form":  {sel: v1.FileKeySelector{VolumeName: "v", Path: "bad", Key: "A", Optional: new(true)}, want: "couldn't parse env file"},
		"link out of it":   {sel: v1.FileKeySelector{VolumeName: "v", Path: "link", Key: "A"}, want: "couldn't parse env file"},
		"path out of it":   {sel: v1.FileKeySelector{VolumeName: "v", Path: "../x", Key: "A"}, want: "must not contain '..'"},
		"pipe":             {sel: v1.FileKeySelector{VolumeName: "v", Path: "pipe", Key: "A"}, want: "is not a regular file"},
		"folder":           {sel: v1.FileKeySelector{VolumeName: "v", Path: "d", Key: "A"}, want: "is not a regular file"},
		"larger than 64Ki": {sel: v1.FileKeySelector{VolumeName: "v", Path: "big", Key: "A"}, want: "it has more than 65536 bytes"},
	} {
		value, found, err := o.fileKey(pod)(&tc.sel)
		if value != tc.value || found != (tc.value != "") {
			t.Errorf("%s: %q, %v", name, value, found)
		}
		if (err == nil) != (tc.want == "") || err != nil && !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: %v, want %q", name, err, tc.want)
		}
	}
}
