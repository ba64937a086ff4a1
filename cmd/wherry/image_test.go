package main

import (
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"wherry.dev/internal/image"
)

func TestProgressInAPipeIsAFewLines(t *testing.T) {
	var out strings.Builder
	lines := progressLines{w: &out, ref: "demo:1"}
	for done := int64(0); done <= 1000; done++ {
		lines.report(image.Progress{Done: done << 20, Total: 1000 << 20, Layers: 2})
	}
	got := strings.Split(strings.TrimSpace(out.String()), "\n")
	if len(got) != 11 || got[10] != "demo:1: 100% 1000.0 MiB of 1000.0 MiB, 0 of 2 layers unpacked" {
		t.Errorf("%d lines: %q", len(got), got)
	}
}

func TestCredentialsOfAPull(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("DOCKER_CONFIG", dir)
	config := `{"auths":{"registry.example":{"auth":"YW5uOngueTp6"},"https://index.docker.io/v1/":{"username":"bob","password":"b"},"tokens.example":{"identitytoken":"t"}}}`
	if err := os.WriteFile(filepath.Join(dir, "config.json"), []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		creds, ref string
		want       image.Auth
		fails      string
	}{
		{ref: "registry.example/team/app:1", want: image.Auth{Username: "ann", Password: "x.y:z", ServerAddress: "registry.example"}},
		{ref: "nginx", want: image.Auth{Username: "bob", Password: "b", ServerAddress: "index.docker.io"}},
		{ref: "tokens.example/x", want: image.Auth{IdentityToken: "t", ServerAddress: "tokens.example"}},
		{ref: "other.example/x"},
		{ref: "other.example/x", creds: "eve:a:b", want: image.Auth{Username: "eve", Password: "a:b"}},
		{ref: "x", creds: "eve", fails: "USERNAME:PASSWORD"},
		{ref: "Not A Reference", fails: "invalid reference"},
	} {
		got, err := credentials(c.creds, c.ref)
		got.Auth = "" // the same as name and password
		if got != c.want || (err != nil) != (c.fails != "") || err != nil && !strings.Contains(err.Error(), c.fails) {
			t.Errorf("%s %s: %+v, %v", c.creds, c.ref, got, err)
		}
	}
}

// `wherry image export` and its like used to make a data dir with an empty store where no instance
// was, and then said that they did not find the image.
func TestCommandsThatReadCreateNothing(t *testing.T) {
	t.Setenv("KUBECONFIG", "")
	dir := t.TempDir()
	for _, args := range [][]string{
		{"image", "list"}, {"image", "export", "busybox", "-o", filepath.Join(dir, "out.tar")}, {"image", "pulls"},
		{"image", "remove", "busybox"}, {"image", "prune"}, {"explain", "pod/hello"}, {"trace", "pod/hello"},
	} {
		cmd := root()
		cmd.SetOut(io.Discard)
		cmd.SetArgs(append([]string{"--data-dir", filepath.Join(dir, "data"), "--run-dir", filepath.Join(dir, "run")}, args...))
		err := cmd.ExecuteContext(t.Context())
		if err == nil || args[0] == "image" && !strings.Contains(err.Error(), "there is no instance with images in "+dir) {
			t.Errorf("%s: %v", args, err)
		}
		if made, err := os.ReadDir(dir); err != nil || len(made) > 0 {
			t.Fatalf("%s made %v, %v", args, made, err)
		}
	}
}
