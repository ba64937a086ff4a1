package e2e

import (
	"io"
	"log"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	v1 "k8s.io/api/core/v1"

	"wherry.dev/test/images"
)

// pushBusybox serves busybox from a registry on loopback.
func pushBusybox(t *testing.T, repo string) (ref string) {
	t.Helper()
	srv := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	t.Cleanup(srv.Close)
	root, err := images.Busybox()
	if err != nil {
		t.Fatal(err)
	}
	img, err := images.New(imageConfig(), root)
	if err != nil {
		t.Fatal(err)
	}
	ref = strings.TrimPrefix(srv.URL, "http://") + "/" + repo
	tag, err := name.NewTag(ref)
	if err != nil {
		t.Fatal(err)
	}
	if err := remote.Write(tag, img); err != nil {
		t.Fatal(err)
	}
	return ref
}

func TestImageFromARegistry(t *testing.T) {
	needsOwnRuntime(t)
	c := startCluster(t)
	ref := pushBusybox(t, "team/tool:2")
	c.create(busybox("pulled", func(p *v1.Pod) { p.Spec.Containers[0].Image = ref }))
	p := c.await("pulled", "ready", ready)
	if !strings.Contains(p.Status.ContainerStatuses[0].ImageID, "sha256:") {
		t.Error(describe(p))
	}
	c.awaitEvent("pulled", "Pulling")
	c.awaitEvent("pulled", "Pulled")
	c.delete("pulled")

	// The same image as before, so that it now has two names: the answer is about the one that was
	// asked for.
	other := pushBusybox(t, "by/hand:1")
	if out := c.must("image", "pull", other); !strings.Contains(out, "pulled "+other+" sha256:") {
		t.Error(out)
	}
	c.create(busybox("never", func(p *v1.Pod) {
		p.Spec.Containers[0].Image, p.Spec.Containers[0].ImagePullPolicy = other, v1.PullNever
	}))
	c.await("never", "ready", ready)
	c.delete("never")
	if _, err := c.try("image", "pull", other+"-missing"); err == nil || !strings.Contains(err.Error(), "by/hand") {
		t.Errorf("pulling what is not there: %v", err)
	}
}
