package main

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"wherry.dev/test/images"
)

// hosts are the registries from which critest pulls.
var hosts = []string{"registry.k8s.io", "k8s.gcr.io", "gcr.io", "public.ecr.aws"}

// standin builds the program that stands in for what is missing.
func standin(ctx context.Context, dir string) (images.File, error) {
	path := filepath.Join(dir, "standin")
	cmd := exec.CommandContext(ctx, "go", "build", "-ldflags=-s -w", "-o", path, "wherry.dev/test/critest/standin")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return images.File{}, fmt.Errorf("build the stand-in program: %w: %s", err, out)
	}
	doc, err := os.ReadFile(path)
	return images.File{Data: doc, Mode: 0o755}, err
}

// base returns Debian's busybox and the stand-in together: the root of every image.
func base(program images.File) (images.Root, error) {
	root, err := images.Busybox()
	if err != nil {
		return nil, err
	}
	root["etc/passwd"] = images.File{Mode: 0o644, Data: []byte(`root:x:0:0:root:/root:/bin/sh
www-data:x:33:33:www-data:/var/www:/bin/false
nobody:x:65534:65534:nobody:/home:/bin/false
`)}
	root["etc/group"] = images.File{Mode: 0o644, Data: []byte("root:x:0:\nwww-data:x:33:\nnogroup:x:65534:\n")}
	for _, d := range []string{"var/run", "var/lib", "usr/sbin"} {
		root[d] = images.File{Mode: fs.ModeDir | 0o755}
	}
	root["bin/ls"] = root["bin/busybox"] // not a link: masking it must leave the others alone
	root["usr/sbin/nginx"] = program
	for link, target := range map[string]string{
		"bin/ipcs": "../usr/sbin/nginx", "bin/pgrep": "../usr/sbin/nginx", "usr/sbin/httpd": "nginx", "bin/sh": "../usr/sbin/nginx",
	} {
		root[link] = images.File{Link: target}
	}
	return root, nil
}

// catalog makes the images that critest names, by repository and tag.
func catalog(program images.File) (map[string]v1.Image, error) {
	root, err := base(program)
	if err != nil {
		return nil, err
	}
	all := map[string]v1.Image{}
	add := func(cfg v1.Config, extra images.Root, names ...string) {
		if err != nil {
			return
		}
		cfg.Env = []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
		if len(cfg.Cmd) == 0 {
			cfg.Cmd = []string{"sh"}
		}
		layers := []images.Root{root}
		if extra != nil {
			layers = append(layers, extra)
		}
		var img v1.Image
		if img, err = images.New(cfg, layers...); err == nil {
			for _, n := range names {
				all[n] = img
			}
		}
	}
	addPrograms(add, program)
	addReferences(add)
	return all, err
}

type adder func(cfg v1.Config, extra images.Root, names ...string)

// marked makes an image distinct from all others.
func marked(name string) images.Root {
	return images.Root{"marker": {Mode: 0o644, Data: []byte(name + "\n")}}
}

// addPrograms adds the images whose programs critest runs.
func addPrograms(add adder, program images.File) {
	add(v1.Config{}, nil, "e2e-test-images/busybox:1.29-2")
	add(v1.Config{Cmd: []string{"nginx"}}, nil, "e2e-test-images/nginx:1.14-2")
	add(v1.Config{Cmd: []string{"/usr/sbin/httpd"}}, nil, "e2e-test-images/httpd:2.4.39-4")
	add(v1.Config{Cmd: []string{"sleep", "infinity"}}, marked("pause"), "pause:3.9")
	for _, arch := range []string{"amd64", "arm64"} {
		add(v1.Config{Cmd: []string{"nginx", "-port", "12003"}}, nil, "k8s-staging-cri-tools/hostnet-nginx-"+arch+":latest")
	}
	program.Mode |= fs.ModeSetuid
	add(v1.Config{Cmd: []string{"/nnp"}}, images.Root{"nnp": program}, "e2e-test-images/nonewprivs:1.3")
	member := images.Root{
		"etc/passwd": {Mode: 0o644, Data: []byte("root:x:0:0:root:/root:/bin/sh\ndefault-user:x:1000:1000::/home:/bin/sh\n")},
		"etc/group":  {Mode: 0o644, Data: []byte("root:x:0:\ndefault-user:x:1000:\ngroup-defined-in-image:x:50000:default-user\n")},
	}
	add(v1.Config{User: "1000"}, member, "k8s-staging-cri-tools/test-image-predefined-group:latest")
}

// addReferences adds the images that critest only names, lists and removes.
func addReferences(add adder) {
	const repo = "k8s-staging-cri-tools/test-image-"
	for name, user := range map[string]string{
		"user-uid": "1002", "user-username": "www-data", "user-uid-group": "1003:users", "user-username-group": "www-data:100",
	} {
		add(v1.Config{User: user}, marked(name), repo+name+":latest")
	}
	for _, name := range []string{"latest:latest", "tag:test", "tag:all", "digest:test", "1:latest", "2:latest", "3:latest"} {
		add(v1.Config{}, marked(name), repo+name)
	}
	add(v1.Config{}, marked("tags"), repo+"tags:1", repo+"tags:2", repo+"tags:3")
	for _, tag := range []string{"1.35.0-glibc", "1-uclibc", "1", "1-glibc", "1-musl"} {
		add(v1.Config{}, marked(tag), "docker/library/busybox:"+tag)
	}
}
