package volume

import (
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
)

func firstMount(t *testing.T, in ContainerInput) (string, error) {
	t.Helper()
	in.Container = &in.Pod.Spec.Containers[0]
	mounts, err := newMounter(t, objs{}).ContainerMounts(t.Context(), in)
	if err != nil {
		return "", err
	}
	return mounts[0].String(), nil
}

func TestImageVolumesAreMountedByTheRuntime(t *testing.T) {
	pod := podWith(v1.VolumeSource{Image: &v1.ImageVolumeSource{Reference: "busybox"}})
	pod.Spec.Containers[0].VolumeMounts[0].SubPath = "bin"
	if got, err := firstMount(t, ContainerInput{Pod: pod}); err == nil {
		t.Errorf("without the image: %s", got)
	}
	got, err := firstMount(t, ContainerInput{Pod: pod, Images: map[string]string{"v": "sha256:1"}})
	for _, want := range []string{`container_path:"/v"`, "readonly:true", `image:"sha256:1"`, `user_specified_image:"busybox"`, `image_sub_path:"bin"`} {
		if err != nil || !strings.Contains(strings.ReplaceAll(got, "  ", " "), want) {
			t.Errorf("%s, %v: no %s", got, err, want)
		}
	}
	pod.Spec.Containers[0].VolumeMounts[0].SubPath = "../etc"
	if got, err := firstMount(t, ContainerInput{Pod: pod, Images: map[string]string{"v": "sha256:1"}}); err == nil {
		t.Errorf("out of the image: %s", got)
	}
}

func TestRecursiveReadOnly(t *testing.T) {
	bidirectional := v1.MountPropagationBidirectional
	for _, tc := range []struct {
		mode        v1.RecursiveReadOnlyMode
		readOnly    bool
		can         bool
		propagation *v1.MountPropagationMode
		recursive   bool
		err         string
	}{
		{mode: v1.RecursiveReadOnlyDisabled, readOnly: true, can: true},
		{mode: v1.RecursiveReadOnlyIfPossible, readOnly: true, can: true, recursive: true},
		{mode: v1.RecursiveReadOnlyIfPossible, readOnly: true},
		{mode: v1.RecursiveReadOnlyEnabled, readOnly: true, can: true, recursive: true},
		{mode: v1.RecursiveReadOnlyEnabled, readOnly: true, err: "not supported by the runtime"},
		{mode: v1.RecursiveReadOnlyEnabled, can: true, err: "it is not read-only"},
		{mode: v1.RecursiveReadOnlyEnabled, readOnly: true, can: true, propagation: &bidirectional, err: "not compatible with propagation"},
	} {
		got, err := recursiveReadOnly(&v1.VolumeMount{Name: "v", ReadOnly: tc.readOnly, RecursiveReadOnly: &tc.mode, MountPropagation: tc.propagation}, tc.can)
		if got != tc.recursive || (err == nil) != (tc.err == "") || err != nil && !strings.Contains(err.Error(), tc.err) {
			t.Errorf("%+v: %v, %v", tc, got, err)
		}
	}
}
