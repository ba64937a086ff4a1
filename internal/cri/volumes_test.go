package cri

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"wherry.dev/internal/cri/disk"
)

func imageMount(path, image, sub string) *runtimeapi.Mount {
	return &runtimeapi.Mount{ContainerPath: path, Readonly: true, Image: &runtimeapi.ImageSpec{Image: image}, ImageSubPath: sub}
}

// TestImageVolume mounts an image into a container, with and without a user namespace.
func TestImageVolume(t *testing.T) {
	eachRuntime(t, func(t *testing.T, n *node) {
		for _, owner := range []string{"own", "machine"} {
			if owner == "own" && !n.translates() {
				continue
			}
			p := n.pod(func(c *runtimeapi.PodSandboxConfig) {
				if owner == "own" {
					withUserns(c)
				}
			})
			cfg := containerConfig("v", "sh", "-c", `/all/bin/busybox echo runs; stat -c %u /all/bin/busybox; head -1 /etc-of-image/passwd;
				head -1 /one-file; touch /all/x 2>&1 | grep -o Read-only`)
			cfg.Mounts = []*runtimeapi.Mount{
				imageMount("/all", "busybox:latest", ""), imageMount("/etc-of-image", "busybox:latest", "etc"), imageMount("/one-file", "busybox:latest", "etc/group"),
			}
			id := p.create(cfg)
			img, ok := n.images.Lookup("busybox:latest")
			if got := n.status(id).GetMounts()[1].GetImage().GetImageRef(); !ok || got != img.ID {
				t.Errorf("the mount's image is %q, want %q", got, img.ID)
			}
			if disk.Exists(filepath.Join(n.cfg.layout().ContainerState(), id, "volumes")) {
				t.Error("the volumes' sources are still mounted")
			}
			n.restart()
			n.must(n.run.StartContainer(t.Context(), id))
			st := n.waitExit(id)
			if got, want := logText(t, st.GetLogPath(), "stdout"), "runs\n0\nroot:x:0:0:root:/root:/bin/sh\nroot:x:0:\nRead-only\n"; got != want {
				t.Errorf("%s: got %q, want %q (%s)", owner, got, want, logText(t, st.GetLogPath(), "stderr"))
			}
		}
	})
}

func TestImageVolumesThatCannotBe(t *testing.T) {
	p := newNode(t).pod()
	writable, both := imageMount("/a", "busybox:latest", ""), imageMount("/a", "busybox:latest", "")
	writable.Readonly, both.HostPath = false, "/tmp"
	for name, c := range map[string]struct {
		mount *runtimeapi.Mount
		code  codes.Code
		want  string
	}{
		"writable": {writable, codes.InvalidArgument, "read-only"},
		"both":     {both, codes.InvalidArgument, "both an image and a host path"},
		"absent":   {imageMount("/a", "nosuch:1", ""), codes.NotFound, "not present"},
		"no path":  {imageMount("/a", "busybox:latest", "no/such"), codes.Unknown, "ImageVolumeMountFailed"},
		"escape":   {imageMount("/a", "busybox:latest", "../../../../etc"), codes.Unknown, "ImageVolumeMountFailed"},
		"absolute": {imageMount("/a", "busybox:latest", "/etc"), codes.Unknown, "ImageVolumeMountFailed"},
	} {
		cfg := containerConfig("v", "true")
		cfg.Mounts = []*runtimeapi.Mount{c.mount}
		_, err := p.run.CreateContainer(t.Context(), p.id, cfg, p.cfg)
		if err == nil || status.Code(err) != c.code || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %s %q", name, err, c.code, c.want)
		}
	}
}

// TestKillWithVolumesMounted: what a killed runtime leaves mounted is unmounted before its folder
// is removed; otherwise an image's layers and the pod's volumes would be deleted, too.
func TestKillWithVolumesMounted(t *testing.T) {
	for _, step := range []string{"layers-translated", "container-rootfs", "container-cgroup", "container-created"} {
		t.Run(step, func(t *testing.T) {
			n := newNode(t)
			n.needUserns()
			volume := filepath.Join(n.dir, "vol")
			n.must(os.MkdirAll(volume, 0o755))
			n.must(os.WriteFile(filepath.Join(volume, "file"), []byte("precious"), 0o600))
			cfg := n.podConfig(withUserns)
			id, err := n.run.RunPodSandbox(t.Context(), cfg, "")
			n.must(err)
			create := containerConfig("c", "sh", "-c", "cat /vol/file; ls -d /image/bin/busybox")
			create.Mounts = []*runtimeapi.Mount{
				imageMount("/image", "busybox:latest", ""),
				{ContainerPath: "/vol", HostPath: volume, UidMappings: mapped(65536), GidMappings: mapped(65536)},
			}
			n.killedAt(step, job{Verb: "create", Sandbox: id}, cfg, create)
			if doc, err := os.ReadFile(filepath.Join(volume, "file")); err != nil || string(doc) != "precious" {
				t.Fatalf("the volume: %q, %v", doc, err)
			}
			p := &pod{n, id, cfg}
			if out, st := p.output(create); out != "precious/image/bin/busybox\n" {
				t.Errorf("repeated: %q (%s)", out, logText(t, st.GetLogPath(), "stderr"))
			}
		})
	}
}
