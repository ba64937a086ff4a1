package cri

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/containerd/errdefs"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	crierrors "k8s.io/cri-api/pkg/errors"

	"wherry.dev/internal/image"
	"wherry.dev/internal/trace"
)

// ListImages lists the images, or those that the filter names.
func (s *Server) ListImages(_ context.Context, req *runtimeapi.ListImagesRequest) (*runtimeapi.ListImagesResponse, error) {
	return &runtimeapi.ListImagesResponse{Images: s.listImages(req.GetFilter())}, nil
}

func (s *Server) listImages(f *runtimeapi.ImageFilter) []*runtimeapi.Image {
	if ref := f.GetImage().GetImage(); ref != "" {
		img, ok := s.images.Lookup(ref)
		if !ok {
			return nil
		}
		return []*runtimeapi.Image{criImage(img)}
	}
	var out []*runtimeapi.Image
	for _, img := range s.images.List() {
		out = append(out, criImage(img))
	}
	return out
}

func criImage(img image.Image) *runtimeapi.Image {
	out := &runtimeapi.Image{
		Id: img.ID, RepoTags: img.Tags, RepoDigests: img.Digests, Size: uint64(img.Size), Pinned: img.Pinned,
		Spec: &runtimeapi.ImageSpec{Image: img.ID},
	}
	user, _, _ := strings.Cut(img.Config.User, ":")
	if user == "" {
		return out
	}
	if uid, err := strconv.ParseInt(user, 10, 64); err == nil {
		out.Uid = &runtimeapi.Int64Value{Value: uid}
	} else {
		out.Username = user
	}
	return out
}

// ImageStatus describes one image. The answer is empty if the image is not present.
func (s *Server) ImageStatus(_ context.Context, req *runtimeapi.ImageStatusRequest) (*runtimeapi.ImageStatusResponse, error) {
	img, ok := s.images.Lookup(req.GetImage().GetImage())
	if !ok {
		resp := &runtimeapi.ImageStatusResponse{}
		if req.GetVerbose() {
			resp.Info = s.pulling(req.GetImage().GetImage())
		}
		return resp, nil
	}
	resp := &runtimeapi.ImageStatusResponse{Image: criImage(img)}
	if req.GetVerbose() {
		layers, err := s.images.Layers(img.ID)
		if err != nil {
			return nil, err
		}
		doc, err := json.Marshal(map[string]any{
			"imageSpec": map[string]any{"config": img.Config, "created": img.Created}, "layers": layers,
		})
		if err != nil {
			return nil, err
		}
		resp.Info = map[string]string{"info": string(doc)}
		maps.Copy(resp.Info, s.pulling(req.GetImage().GetImage()))
	}
	return resp, nil
}

// pulling returns the progress of an image's pull, if one is in progress.
func (s *Server) pulling(ref string) map[string]string {
	full, err := image.Normalize(ref)
	if err != nil {
		return nil
	}
	for _, p := range s.images.Pulls() {
		if p.Reference == full {
			return map[string]string{"pulling": fmt.Sprintf(`{"done":%d,"total":%d,"layersDone":%d,"layers":%d}`,
				p.Progress.Done, p.Progress.Total, p.Progress.LayersDone, p.Progress.Layers)}
		}
	}
	return nil
}

// PullImage fetches an image; concurrent pulls of the same image share one pull.
func (s *Server) PullImage(ctx context.Context, req *runtimeapi.PullImageRequest) (*runtimeapi.PullImageResponse, error) {
	ref := req.GetImage().GetImage()
	if ref == "" {
		return nil, invalid("no image given")
	}
	if uid := req.GetSandboxConfig().GetMetadata().GetUid(); uid != "" {
		ctx = trace.WithPod(ctx, uid)
	}
	img, err := s.images.Pull(ctx, ref, image.PullOptions{Auth: credentials(req.GetAuth())})
	if errdefs.IsNotFound(err) {
		return nil, notFound("%w", err)
	}
	if image.Unavailable(err) { // the kubelet recognises it by the start of the message
		return nil, fmt.Errorf("%w: %w", crierrors.ErrRegistryUnavailable, err)
	}
	if err != nil {
		return nil, err
	}
	return &runtimeapi.PullImageResponse{ImageRef: img.ID}, nil
}

func credentials(a *runtimeapi.AuthConfig) image.Auth {
	return image.Auth{
		Username: a.GetUsername(), Password: a.GetPassword(), Auth: a.GetAuth(), ServerAddress: a.GetServerAddress(),
		IdentityToken: a.GetIdentityToken(), RegistryToken: a.GetRegistryToken(),
	}
}

// RemoveImage removes an image; one that is not present counts as removed.
func (s *Server) RemoveImage(ctx context.Context, req *runtimeapi.RemoveImageRequest) (*runtimeapi.RemoveImageResponse, error) {
	err := s.images.Remove(ctx, req.GetImage().GetImage())
	if err != nil && !errors.Is(err, image.ErrNotFound) {
		return nil, err
	}
	return &runtimeapi.RemoveImageResponse{}, nil
}

// ImageFsInfo returns how much space the images and the writable layers take.
func (s *Server) ImageFsInfo(context.Context, *runtimeapi.ImageFsInfoRequest) (*runtimeapi.ImageFsInfoResponse, error) {
	bytes, inodes, err := s.images.Usage()
	if err != nil {
		return nil, err
	}
	now := time.Now()
	images := fsUsage(nanos(now), s.images.Dir(), bytes, inodes)
	containers, err := s.layersUsage.get(now, s.cfg.containerRoot())
	if err != nil {
		return nil, err
	}
	return &runtimeapi.ImageFsInfoResponse{
		ImageFilesystems:     []*runtimeapi.FilesystemUsage{images},
		ContainerFilesystems: []*runtimeapi.FilesystemUsage{containers},
	}, nil
}

// usageAge is how old a measurement of the writable layers may be, as in containerd. A
// measurement that was quick is repeated sooner, so that a container filling the disk is noticed,
// but measuring takes at most a hundredth of the time (usageShare).
const (
	usageAge   = 10 * time.Second
	usageShare = 100
)

// measuredUsage is a usage that is expensive to measure: every file is looked at.
type measuredUsage struct {
	mu   sync.Mutex
	at   time.Time
	took time.Duration
	last *runtimeapi.FilesystemUsage
}

// get measures dir, or returns the last result while it is recent.
func (u *measuredUsage) get(now time.Time, dir string) (*runtimeapi.FilesystemUsage, error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.last != nil && now.Sub(u.at) < min(usageAge, usageShare*u.took) {
		return u.last, nil
	}
	began := time.Now()
	bytes, inodes, err := diskUsage(dir)
	if err != nil {
		return nil, err
	}
	u.took = time.Since(began)
	u.at, u.last = now, fsUsage(nanos(now), dir, bytes, inodes)
	return u.last, nil
}

func fsUsage(now int64, dir string, bytes, inodes uint64) *runtimeapi.FilesystemUsage {
	return &runtimeapi.FilesystemUsage{
		Timestamp: now, FsId: &runtimeapi.FilesystemIdentifier{Mountpoint: dir},
		UsedBytes: &runtimeapi.UInt64Value{Value: bytes}, InodesUsed: &runtimeapi.UInt64Value{Value: inodes},
	}
}
