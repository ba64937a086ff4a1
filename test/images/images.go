// Package images builds the demo and test images as OCI archives without a
// registry: Debian's busybox-static, and static Go programs of this repository.
package images

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"sort"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"runtime"
)

// BusyboxPath is where Debian's busybox-static installs its program.
const BusyboxPath = "/bin/busybox"

// Root is the content of an image's only layer: path → file.
type Root map[string]File

// File is a regular file, a folder (IsDir) or a symbolic link (Link).
type File struct {
	Data []byte
	Mode fs.FileMode
	Link string
	UID  int
	GID  int
}

// Busybox returns a small root with all of busybox's applets and the usual accounts.
func Busybox() (Root, error) {
	prog, err := os.ReadFile(BusyboxPath)
	if err != nil {
		return nil, fmt.Errorf("%w; `make deps` installs busybox-static", err)
	}
	applets, err := exec.Command(BusyboxPath, "--list").Output()
	if err != nil {
		return nil, fmt.Errorf("busybox --list: %w", err)
	}
	r := Root{
		"bin/busybox": {Data: prog, Mode: 0o755},
		"etc/passwd":  {Data: []byte("root:x:0:0:root:/root:/bin/sh\nbin:x:1:1:bin:/bin:/bin/false\nuser:x:1000:1000:user:/home:/bin/sh\nnobody:x:65534:65534:nobody:/home:/bin/false\n"), Mode: 0o644},
		"etc/group":   {Data: []byte("root:x:0:\nbin:x:1:\naudio:x:29:user\nuser:x:1000:\nnogroup:x:65534:\n"), Mode: 0o644},
		"tmp":         {Mode: fs.ModeDir | fs.ModeSticky | 0o777},
		"root":        {Mode: fs.ModeDir | 0o700},
	}
	for _, d := range []string{"home", "proc", "sys", "dev", "run", "var", "var/www", "usr", "usr/bin"} {
		r[d] = File{Mode: fs.ModeDir | 0o755}
	}
	for a := range strings.FieldsSeq(string(applets)) {
		if a != "busybox" {
			r["bin/"+a] = File{Link: "busybox"}
		}
	}
	r["usr/bin/env"] = File{Link: "/bin/busybox"}
	return r, nil
}

// Tar writes the root as a layer; the same content gives the same bytes.
func (r Root) Tar() ([]byte, error) {
	r = r.withParents()
	paths := make([]string, 0, len(r))
	for p := range r {
		paths = append(paths, p)
	}
	sort.Strings(paths)
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	for _, p := range paths {
		if err := writeEntry(w, p, r[p]); err != nil {
			return nil, err
		}
	}
	return buf.Bytes(), w.Close()
}

func (r Root) withParents() Root {
	out := Root{}
	for p, f := range r {
		out[p] = f
		for d := filepath.Dir(p); d != "."; d = filepath.Dir(d) {
			if _, ok := r[d]; !ok {
				out[d] = File{Mode: fs.ModeDir | 0o755}
			}
		}
	}
	return out
}

func writeEntry(w *tar.Writer, p string, f File) error {
	h := &tar.Header{Name: p, Mode: int64(f.Mode.Perm()), Uid: f.UID, Gid: f.GID, ModTime: time.Unix(0, 0), Format: tar.FormatPAX}
	if f.Mode&fs.ModeSticky != 0 {
		h.Mode |= 0o1000
	}
	if f.Mode&fs.ModeSetuid != 0 {
		h.Mode |= 0o4000
	}
	switch {
	case f.Link != "":
		h.Typeflag, h.Linkname, h.Mode = tar.TypeSymlink, f.Link, 0o777
	case f.Mode.IsDir():
		h.Typeflag, h.Name = tar.TypeDir, p+"/"
	default:
		h.Typeflag, h.Size = tar.TypeReg, int64(len(f.Data))
	}
	if err := w.WriteHeader(h); err != nil {
		return err
	}
	if h.Typeflag != tar.TypeReg {
		return nil
	}
	_, err := w.Write(f.Data)
	return err
}

// New makes an image for this machine's platform from layers, base first.
func New(config v1.Config, layers ...Root) (v1.Image, error) {
	img := v1.Image(empty.Image)
	for _, root := range layers {
		data, err := root.Tar()
		if err != nil {
			return nil, err
		}
		l, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(data)), nil })
		if err != nil {
			return nil, err
		}
		if img, err = mutate.AppendLayers(img, l); err != nil {
			return nil, err
		}
	}
	file, err := img.ConfigFile()
	if err != nil {
		return nil, err
	}
	file = file.DeepCopy()
	file.Config, file.OS, file.Architecture = config, "linux", runtime.GOARCH
	return mutate.ConfigFile(img, file)
}

// Save writes the image as an archive under the tags.
func Save(path string, img v1.Image, tags ...string) error {
	refs := map[name.Tag]v1.Image{}
	for _, t := range tags {
		tag, err := name.NewTag(t)
		if err != nil {
			return err
		}
		refs[tag] = img
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	tmp := path + ".tmp"
	if err := tarball.MultiWriteToFile(tmp, refs); err != nil {
		return errors.Join(err, os.Remove(tmp))
	}
	return os.Rename(tmp, path)
}

// SaveBusybox writes docker.io/library/busybox under the tags 1.36 and latest.
func SaveBusybox(path string) error {
	root, err := Busybox()
	if err != nil {
		return err
	}
	img, err := New(v1.Config{Cmd: []string{"sh"}, Env: []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}}, root)
	if err != nil {
		return err
	}
	return Save(path, img, "busybox:1.36", "busybox:latest")
}

// AddTool copies a program of this machine with the shared libraries that it needs.
func (r Root) AddTool(path string) error {
	out, err := exec.Command("ldd", path).Output()
	if _, ok := errors.AsType[*exec.ExitError](err); ok {
		err = nil // a static one
	}
	if err != nil {
		return fmt.Errorf("libraries of %s: %w", path, err)
	}
	files := []string{path}
	for field := range strings.FieldsSeq(string(out)) {
		if strings.HasPrefix(field, "/") {
			files = append(files, field)
		}
	}
	for _, f := range files {
		doc, err := os.ReadFile(f)
		if err != nil {
			return err
		}
		r[strings.TrimPrefix(f, "/")] = File{Data: doc, Mode: 0o755}
	}
	return nil
}
