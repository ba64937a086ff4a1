package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path"
	"regexp"
	"slices"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"wherry.dev/internal/pki"
	"wherry.dev/test/images"
)

// tools are programs that specs call in busybox and agnhost images and that busybox lacks, or
// implements differently: Debian's busybox has a cut-down nc, its wget crashes with -T, and its shell
// drops variables whose names are not identifiers. Package → programs.
var tools = map[string][]string{
	"bash": {"/bin/bash"}, "coreutils": {"/bin/dd", "/usr/bin/printenv"}, "netcat-openbsd": {"/bin/nc.openbsd"}, "curl": {"/usr/bin/curl"},
	"bind9-dnsutils": {"/usr/bin/dig"}, "iproute2": {"/bin/ip"}, "libc-bin": {"/usr/bin/getent"}, "procps": {"/usr/bin/pgrep"},
	"util-linux": {"/usr/bin/ipcs"}, "wget": {"/usr/bin/wget"},
}

// searchPath is PATH in every image.
const searchPath = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// listImages asks the test program for the images that its specs name.
func listImages(ctx context.Context, e2e string) ([]string, error) {
	out, err := exec.CommandContext(ctx, e2e, "--list-images").Output()
	if err != nil {
		return nil, fmt.Errorf("%s --list-images: %w", e2e, err)
	}
	return append(strings.Fields(string(out)), inManifests...), nil
}

// inManifests are images that manifests and specs of the test program name, and its list does not; docker.io's registry has
// another name than its images.
var inManifests = []string{"registry.k8s.io/e2e-test-images/sample-device-plugin:1.7", "registry-1.docker.io/library/busybox:1.36"}

// upstream is a program of upstream's own, static, that the caller has.
type upstream struct {
	name string
	// image that has it, and its path there.
	image, at string
	// specs that need it, a regular expression; "" if there are too many to name.
	specs string
}

var upstreams = []upstream{
	{"agnhost", "agnhost", "agnhost", ""},
	{"coredns", "agnhost", "coredns", "DNS should support configurable pod resolv.conf"},
	{"sample-apiserver", "sample-apiserver", "sample-apiserver", "Sample API Server"},
	{"etcd", "etcd", "usr/local/bin/etcd", "Sample API Server"},
	{"sample-device-plugin", "sample-device-plugin", "sampledeviceplugin", `\[Feature:DevicePlugin\]`},
	// Its container on each node passes on what the kubelet asks of a driver, which is in the test program.
	{"hostpathplugin", "hostpathplugin", "hostpathplugin", `\[DRA\] (kubelet|control plane|\[FeatureGate)`},
}

// programs are the paths of upstream's programs, by name.
type programs map[string]string

// layer returns the programs of the image, nil if the caller has none.
func (p programs) layer(image string) (images.Root, error) {
	var layer images.Root
	for _, u := range upstreams {
		if u.image != image || p[u.name] == "" {
			continue
		}
		doc, err := os.ReadFile(p[u.name])
		if err != nil {
			return nil, err
		}
		if layer == nil {
			layer = images.Root{}
		}
		layer[u.at] = images.File{Data: doc, Mode: 0o755}
	}
	return layer, nil
}

// runnable splits off the specs that need a program that the caller does not have.
func (p programs) runnable(names []string) (can []string, skipped map[string]string) {
	skipped = map[string]string{}
	for _, u := range upstreams {
		if u.specs == "" || p[u.name] != "" {
			continue
		}
		need := regexp.MustCompile(u.specs)
		for _, name := range names {
			if need.MatchString(name) {
				skipped[name] = "it needs -" + u.name + ", upstream's program"
			}
		}
	}
	for _, name := range names {
		if skipped[name] == "" {
			can = append(can, name)
		}
	}
	return can, skipped
}

// catalog makes the images that can be made here, by repository and tag, and returns the hosts of
// all registries. An image with a program that the caller does not have is left out.
func catalog(names []string, has programs) (all map[string]v1.Image, hosts []string, err error) {
	root, err := base()
	if err != nil {
		return nil, nil, err
	}
	made := map[string]v1.Image{}
	all = map[string]v1.Image{}
	for _, n := range names {
		host, rest, ok := strings.Cut(n, "/")
		if !ok || !strings.Contains(host, ".") || strings.HasPrefix(host, "invalid.") { // specs want no answer from that one
			continue
		}
		hosts = append(hosts, host)
		repo, _, _ := strings.Cut(path.Base(rest), ":")
		if _, ok := made[repo]; !ok {
			if made[repo], err = build(repo, root, has); err != nil {
				return nil, nil, fmt.Errorf("image %s: %w", n, err)
			}
		}
		if made[repo] != nil {
			all[rest] = made[repo]
		}
	}
	slices.Sort(hosts)
	return all, slices.Compact(hosts), nil
}

// nmeter is what specs use of busybox's program, which Debian's busybox lacks: the time of day with milliseconds.
const nmeter = `#!/bin/bash
now=$EPOCHREALTIME
TZ=UTC0 printf '%(%H:%M:%S)T.%s\n' "${now%.*}" "${now: -6:3}"
`

// nginx is a web server of that name, which says what its process is.
const nginx = `#!/bin/bash
echo $$ >/var/run/nginx.pid
httpd -f -p 80 -h /var/www &
trap "kill $!" INT TERM
wait
`

// base returns busybox with a real shell and real tools.
func base() (images.Root, error) {
	root, err := images.Busybox()
	if err != nil {
		return nil, err
	}
	var missing []string
	for _, pkg := range slices.Sorted(maps.Keys(tools)) {
		for _, program := range tools[pkg] {
			err := root.AddTool(program)
			switch {
			case errors.Is(err, fs.ErrNotExist):
				missing = append(missing, pkg)
			case err != nil:
				return nil, err
			}
		}
	}
	if len(missing) > 0 {
		return nil, fmt.Errorf("the test images are made of programs that are not there: apt-get install %s", strings.Join(missing, " "))
	}
	root["bin/sh"] = images.File{Link: "bash"}
	root["bin/nc"] = images.File{Link: "nc.openbsd"}
	root["bin/nmeter"] = images.File{Data: []byte(nmeter), Mode: 0o755}
	root["var/tmp"] = images.File{Mode: fs.ModeDir | fs.ModeSticky | 0o777}
	root["etc/nsswitch.conf"] = images.File{Data: []byte("hosts: files dns\n"), Mode: 0o644}
	return root, nil
}

// build makes the stand-in for upstream's image of that name; nil for one that has none here.
func build(repo string, root images.Root, has programs) (v1.Image, error) {
	cfg := v1.Config{Env: []string{searchPath}, Cmd: []string{"sh"}}
	layers := []images.Root{root}
	switch repo {
	case "busybox", "ipc-utils", "alpine", "glibc-dns-testing", "jessie-dnsutils":
	case "nonroot":
		cfg.User = "1234"
	case "pause":
		cfg.Entrypoint, cfg.Cmd = []string{"sh", "-c", "trap 'exit 0' INT TERM; sleep infinity & wait"}, nil
	case "nginx", "httpd", "perl":
		cfg.Cmd = []string{"nginx"}
		layers = append(layers, images.Root{
			"var/www/index.html": {Data: []byte("<title>Welcome to nginx!</title>\n"), Mode: 0o644},
			"var/run":            {Mode: fs.ModeDir | 0o755},
			"bin/nginx":          {Data: []byte(nginx), Mode: 0o755},
		})
	case "nautilus": // says which picture it is
		cfg.Cmd = []string{"httpd", "-f", "-p", "80", "-h", "/var/www"}
		layers = append(layers, images.Root{"var/www/data.json": {Data: []byte("{\"image\": \"nautilus.jpg\"}\n"), Mode: 0o644}})
	case "nonewprivs":
		cfg.Cmd = []string{"/usr/bin/effective-uid"}
		program, err := effectiveUID()
		if err != nil {
			return nil, err
		}
		layers = append(layers, images.Root{"usr/bin/effective-uid": program})
	case "kitten": // for image volumes
		layers = append(layers, images.Root{
			"data.json":      {Data: []byte("{\"image\": \"kitten.jpg\"}\n"), Mode: 0o644},
			"etc/os-release": {Data: []byte("NAME=\"Alpine Linux\"\n"), Mode: 0o644},
		})
	case "sample-apiserver", "etcd", "sample-device-plugin", "hostpathplugin":
		program, err := has.layer(repo)
		if program == nil || err != nil {
			return nil, err
		}
		cfg.Entrypoint, cfg.Cmd = []string{"/" + slices.Collect(maps.Keys(program))[0]}, nil
		layers = append(layers, program)
	case "agnhost":
		if has["agnhost"] == "" {
			return nil, nil
		}
		program, err := has.layer(repo)
		if err != nil {
			return nil, err
		}
		crt, key, err := localhost()
		if err != nil {
			return nil, err
		}
		pause, err := build("pause", root, has)
		if err != nil {
			return nil, err
		}
		kept, err := registryOf("pause", "testing", pause)
		if err != nil {
			return nil, err
		}
		cfg.Entrypoint, cfg.Cmd = []string{"/agnhost"}, []string{"pause"}
		layers = append(layers, program, kept, images.Root{
			"localhost.crt": {Data: crt, Mode: 0o644}, "localhost.key": {Data: key, Mode: 0o644},
			"agnhost-2": {Link: "agnhost"}, "uploads": {Mode: fs.ModeDir | 0o755},
			"etc/passwd": {Data: []byte("root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\nuser-defined-in-image:x:1000:1000::/home:/bin/sh\n"), Mode: 0o644},
			"etc/group":  {Data: []byte("root:x:0:\nnogroup:x:65534:\nuser-defined-in-image:x:1000:\ngroup-defined-in-image:x:50000:user-defined-in-image\n"), Mode: 0o644},
		})
	default:
		return nil, nil
	}
	return images.New(cfg, layers...)
}

// registryOf returns an image as agnhost's own registry keeps it: manifests and blobs by digest, and tags that have one.
func registryOf(name, tag string, img v1.Image) (images.Root, error) {
	digest, err := img.Digest()
	if err != nil {
		return nil, err
	}
	root := path.Join("var/registry", name)
	out := images.Root{path.Join(root, "manifests", tag): {Data: []byte(digest.String()), Mode: 0o644}}
	keep := func(kind string, digest v1.Hash, doc []byte, err error) error {
		out[path.Join(root, kind, digest.Algorithm, digest.Hex[:2], digest.Hex, "data")] = images.File{Data: doc, Mode: 0o644}
		return err
	}
	manifest, err := img.RawManifest()
	if err := keep("manifests", digest, manifest, err); err != nil {
		return nil, err
	}
	config, err := img.ConfigName()
	if err != nil {
		return nil, err
	}
	doc, err := img.RawConfigFile()
	if err := keep("blobs", config, doc, err); err != nil {
		return nil, err
	}
	layers, err := img.Layers()
	if err != nil {
		return nil, err
	}
	for _, l := range layers {
		digest, err := l.Digest()
		if err != nil {
			return nil, err
		}
		r, err := l.Compressed()
		if err != nil {
			return nil, err
		}
		doc, err := io.ReadAll(r)
		if err := keep("blobs", digest, doc, errors.Join(err, r.Close())); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// localhost makes the certificate with which agnhost serves TLS.
func localhost() (crt, key []byte, err error) {
	dir, err := os.MkdirTemp("", "agnhost-")
	if err != nil {
		return nil, nil, err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	ca, err := pki.LoadOrCreateCA(dir, "ca", "agnhost", time.Now())
	if err != nil {
		return nil, nil, err
	}
	crtFile, keyFile, err := ca.Issue(dir, "localhost", pki.Leaf{CommonName: "localhost", DNSNames: []string{"localhost"}, Server: true}, time.Now())
	if err != nil {
		return nil, nil, err
	}
	if crt, err = os.ReadFile(crtFile); err != nil {
		return nil, nil, err
	}
	key, err = os.ReadFile(keyFile)
	return crt, key, err
}

// effectiveUID builds the program of upstream's nonewprivs image, unless it lies beside this one, for machines without Go.
func effectiveUID() (images.File, error) {
	const mode = 0o755 | fs.ModeSetuid
	if own, err := os.Executable(); err == nil {
		if doc, err := os.ReadFile(path.Join(path.Dir(own), "effectiveuid")); err == nil {
			return images.File{Data: doc, Mode: mode}, nil
		}
	}
	dir, err := os.MkdirTemp("", "effective-uid-")
	if err != nil {
		return images.File{}, err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	bin := path.Join(dir, "effective-uid")
	cmd := exec.Command("go", "build", "-ldflags=-s -w", "-o", bin, "wherry.dev/test/conformance/effectiveuid") //nolint:noctx // seconds
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return images.File{}, fmt.Errorf("%w: %s", err, out)
	}
	doc, err := os.ReadFile(bin)
	return images.File{Data: doc, Mode: mode}, err
}
