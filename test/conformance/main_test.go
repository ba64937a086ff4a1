package main

import (
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"wherry.dev/test/ginkgo"
	"wherry.dev/test/images"
)

// fakeE2E passes the specs in its focus, but dies on the one named "dies", and leaves out one named "lost".
const fakeE2E = `#!/bin/sh
for a in "$@"; do
  case "$a" in
  --ginkgo.json-report=*) report=${a#*=} ;;
  --ginkgo.focus=*dies*) kill -9 $$ ;;
  --ginkgo.focus=*lost*) specs="$specs${specs:+,}{\"LeafNodeText\":\"lost\",\"LeafNodeType\":\"It\",\"State\":\"skipped\"}" ;;
  --ginkgo.focus=*) name=${a#*=} specs="$specs${specs:+,}{\"LeafNodeText\":\"${name%$}\",\"LeafNodeType\":\"It\",\"State\":\"passed\"}" ;;
  esac
done
echo "[{\"SpecReports\":[$specs]}]" >"$report"
`

func TestAProcessThatDiesDoesNotTakeTheSummaryAlong(t *testing.T) {
	dir := t.TempDir()
	e2e := filepath.Join(dir, "e2e.test")
	if err := os.WriteFile(e2e, []byte(fakeE2E), 0o700); err != nil { //nolint:gosec // a program
		t.Fatal(err)
	}
	names := []string{"dies"}
	for i := range 2 * batch {
		names = append(names, "lives"+strings.Repeat("x", i))
	}
	s, report := suite{options: options{e2e: e2e, logs: dir}, node: &node{dir: dir}}, &ginkgo.Report{}
	err := s.run(t.Context(), report, names, 2)
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	ok := report.Print(&out, "conformance", nil)
	if ok || !strings.Contains(out.String(), "conformance: 7 passed, 6 failed, 0 excused, 0 skipped") || !strings.Contains(out.String(), "FAIL dies: e2e.test: the tests wrote no report") {
		t.Errorf("ok %v\n%s", ok, out.String())
	}
}

// A run of specs whose names did not match any was a success.
func TestSpecThatDidNotRunHasFailed(t *testing.T) {
	dir := t.TempDir()
	e2e := filepath.Join(dir, "e2e.test")
	if err := os.WriteFile(e2e, []byte(fakeE2E), 0o700); err != nil { //nolint:gosec // a program
		t.Fatal(err)
	}
	s, report := suite{options: options{e2e: e2e, logs: dir}, node: &node{dir: dir}}, &ginkgo.Report{}
	if err := s.run(t.Context(), report, []string{"lives", "lost"}, 1); err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	if report.Print(&out, "conformance", nil) || !strings.Contains(out.String(), "1 passed, 1 failed") || !strings.Contains(out.String(), "FAIL lost: it did not run") {
		t.Error(out.String())
	}
	if name := (ginkgo.Spec{Containers: []string{"when there is", ""}, Text: "it does"}).Name(); name != "when there is it does" {
		t.Errorf("%q would not be in the focus", name)
	}
}

// Specs of an ordered container fail in a process that has not run those before them.
func TestOrderedSpecsStayTogether(t *testing.T) {
	s := suite{together: map[string]string{}}
	var names []string
	for i := range batch - 1 {
		names = append(names, fmt.Sprint("single", i))
	}
	for i := range 2 * batch {
		name := fmt.Sprint("ordered", i)
		names, s.together[name] = append(names, name), "together"
	}
	names = append(names, "last")
	got := s.batches(names)
	if len(got) != 2 || len(got[0]) != 3*batch-1 || !slices.Equal(got[1], []string{"last"}) {
		t.Errorf("%q", got)
	}
}

func TestSpecsWithoutTheirProgramsAreSkipped(t *testing.T) {
	names := []string{"Pods run", "Aggregator Should be able to support the 1.17 Sample API Server", "DNS should support configurable pod resolv.conf"}
	for _, tc := range []struct {
		has programs
		can int
	}{{programs{}, 1}, {programs{"etcd": "/e"}, 1}, {programs{"etcd": "/e", "sample-apiserver": "/s"}, 2}, {programs{"coredns": "/c"}, 2}} {
		can, skipped := tc.has.runnable(names)
		if len(can) != tc.can || len(skipped) != len(names)-tc.can {
			t.Errorf("%v: %q, %q", tc.has, can, skipped)
		}
	}
}

func TestProgramsOfUpstreamMakeImages(t *testing.T) {
	program := filepath.Join(t.TempDir(), "etcd")
	if err := os.WriteFile(program, []byte("etcd"), 0o600); err != nil {
		t.Fatal(err)
	}
	has := programs{"etcd": program}
	for image, want := range map[string]string{"etcd": "/usr/local/bin/etcd", "sample-apiserver": ""} {
		img, err := build(image, images.Root{}, has)
		if err != nil {
			t.Fatal(err)
		}
		if (img == nil) != (want == "") {
			t.Errorf("%s: %v", image, img)
			continue
		}
		if img == nil {
			continue
		}
		cfg, err := img.ConfigFile()
		if err != nil || !slices.Equal(cfg.Config.Entrypoint, []string{want}) {
			t.Errorf("%s: %v, %v", image, err, cfg.Config.Entrypoint)
		}
	}
	root, err := has.layer("etcd")
	if err != nil || !slices.Equal(slices.Collect(maps.Keys(root)), []string{"usr/local/bin/etcd"}) {
		t.Errorf("%v, %v", err, root)
	}
}

// CoreDNS is a program in agnhost's image, and no image of its own.
func TestProgramsShareAnImage(t *testing.T) {
	has := programs{}
	for _, name := range []string{"agnhost", "coredns"} {
		has[name] = filepath.Join(t.TempDir(), name)
		if err := os.WriteFile(has[name], []byte(name), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	root, err := has.layer("agnhost")
	if err != nil || string(root["agnhost"].Data) != "agnhost" || string(root["coredns"].Data) != "coredns" {
		t.Errorf("%v, %v", err, root)
	}
	if root, err := has.layer("coredns"); root != nil || err != nil {
		t.Errorf("%v, %v", err, root)
	}
}

// A readiness probe of a spec about daemon sets writes there.
func TestImagesHaveAFolderForTemporaryFiles(t *testing.T) {
	root, err := base()
	if err != nil {
		t.Skip("the images need programs of Debian, which make conformance asks for: ", err)
	}
	for _, dir := range []string{"tmp", "var/tmp"} {
		if root[dir].Mode != fs.ModeDir|fs.ModeSticky|0o777 {
			t.Errorf("%s: %v", dir, root[dir].Mode)
		}
	}
}
