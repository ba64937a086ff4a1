// Package imageservice is CRI's ImageService on an image store.
package imageservice

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"strconv"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	crierrors "k8s.io/cri-api/pkg/errors"

	"wherry.dev/internal/cri/crierror"
	"wherry.dev/internal/cri/disk"
	"wherry.dev/internal/image"
	"wherry.dev/internal/trace"
)

// Store is what the ImageService needs of the image store.
type Store interface {
	Pulls() []image.Pulling
	Pull(ctx context.Context, ref string, o image.PullOptions) (image.Image, error)
	Lookup(refOrID string) (image.Image, bool)
	List() []image.Image
	Remove(ctx context.Context, refOrID string) error
	Layers(imageID string) ([]string, error)
	Usage() (bytes, inodes uint64, err error)
	Dir() string
}

// Service is CRI's ImageService.
type Service struct {
	images    Store
	layersDir string // folder of the containers' writable layers

	layersUsage disk.Measured // of the writable layers
}

// New returns the service of an image store. containers is the folder of the containers' writable
// layers.
func New(images Store, containers string) *Service {
	return &Service{images: images, layersDir: containers}
}

// ListImages lists the images, or those that the filter names.
func (s *Service) ListImages(_ context.Context, req *runtimeapi.ListImagesRequest) (*runtimeapi.ListImagesResponse, error) {
	return &runtimeapi.ListImagesResponse{Images: s.All(req.GetFilter())}, nil
}

// All returns the images that match the filter, which may be nil.
func (s *Service) All(f *runtimeapi.ImageFilter) []*runtimeapi.Image {
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
func (s *Service) ImageStatus(_ context.Context, req *runtimeapi.ImageStatusRequest) (*runtimeapi.ImageStatusResponse, error) {
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
func (s *Service) pulling(ref string) map[string]string {
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
func (s *Service) PullImage(ctx context.Context, req *runtimeapi.PullImageRequest) (*runtimeapi.PullImageResponse, error) {
	ref := req.GetImage().GetImage()
	if ref == "" {
		return nil, crierror.Invalid("no image specified")
	}
	if uid := req.GetSandboxConfig().GetMetadata().GetUid(); uid != "" {
		ctx = trace.WithPod(ctx, uid)
	}
	img, err := s.images.Pull(ctx, ref, image.PullOptions{Auth: credentials(req.GetAuth())})
	if errdefs.IsNotFound(err) {
		return nil, crierror.NotFound("%w", err)
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
func (s *Service) RemoveImage(ctx context.Context, req *runtimeapi.RemoveImageRequest) (*runtimeapi.RemoveImageResponse, error) {
	err := s.images.Remove(ctx, req.GetImage().GetImage())
	if err != nil && !errors.Is(err, image.ErrNotFound) {
		return nil, err
	}
	return &runtimeapi.RemoveImageResponse{}, nil
}

// ImageFsInfo returns how much space the images and the writable layers take.
func (s *Service) ImageFsInfo(context.Context, *runtimeapi.ImageFsInfoRequest) (*runtimeapi.ImageFsInfoResponse, error) {
	bytes, inodes, err := s.images.Usage()
	if err != nil {
		return nil, err
	}
	now := time.Now()
	images := disk.FilesystemUsage(now, s.images.Dir(), bytes, inodes)
	containers, err := s.layersUsage.Get(now, s.layersDir)
	if err != nil {
		return nil, err
	}
	return &runtimeapi.ImageFsInfoResponse{
		ImageFilesystems:     []*runtimeapi.FilesystemUsage{images},
		ContainerFilesystems: []*runtimeapi.FilesystemUsage{containers},
	}, nil
}
