// Package layers enforces the architecture: which package may import which, directly or through
// others.
package layers

import (
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const module = "wherry.dev/"

// forbidden lists, for the packages below a folder, what none of them may depend on.
var forbidden = map[string][]string{
	"internal/apiserver":         {"internal/kubelet", "internal/cri", "internal/oci", "internal/cni", "internal/image", "internal/scheduler", "internal/controller", "internal/daemon"},
	"internal/api":               {"internal/apiserver", "internal/kubelet", "internal/cri", "internal/scheduler", "internal/controller", "internal/daemon"},
	"internal/api/pods":          {"internal/", "k8s.io/client-go", "k8s.io/apiserver", "k8s.io/cri-api"},
	"internal/scheduler":         {"internal/kubelet", "internal/cri", "internal/oci", "internal/cni", "internal/image", "internal/apiserver", "internal/controller", "internal/daemon"},
	"internal/controller":        {"internal/kubelet", "internal/cri", "internal/oci", "internal/cni", "internal/image", "internal/apiserver", "internal/scheduler", "internal/daemon"},
	"internal/kubelet":           {"internal/cri", "internal/oci", "internal/cni", "internal/image", "internal/netns", "internal/apiserver", "internal/scheduler", "internal/controller", "internal/daemon"},
	"internal/kubelet/podplan":   {"k8s.io/client-go", "internal/record", "internal/mount", "internal/cgroup", "internal/trace"},
	"internal/kubelet/criconfig": {"internal/kubelet/podplan", "internal/kubelet/podworker", "internal/kubelet/podops", "k8s.io/client-go"},
	"internal/hollow":            {"internal/cri", "internal/oci", "internal/cni", "internal/image", "internal/netns", "internal/apiserver", "internal/scheduler", "internal/controller", "internal/daemon"},
	"internal/explain":           {"internal/kubelet/podworker", "internal/apiserver", "internal/cri", "internal/daemon"},
	"internal/kubelet/podworker": {"internal/kubelet/podops", "internal/kubelet/criconfig"},
	"internal/kubelet/podops":    {"internal/kubelet/podworker"},
	"internal/kubelet/pleg":      {"internal/kubelet/podops", "internal/kubelet/criconfig", "internal/kubelet/volume"},
	"internal/kubelet/prober":    {"internal/kubelet/podops", "internal/kubelet/podworker", "internal/kubelet/criconfig"},
	"internal/cri":               {"internal/kubelet", "internal/apiserver", "internal/scheduler", "internal/controller", "internal/daemon", "k8s.io/api/core/v1"},
	"internal/cri/sandbox":       {"internal/cri/container", "internal/cri/imageservice", "internal/image"},
	"internal/cri/stream":        {"internal/cri/container", "internal/cri/sandbox", "internal/image", "internal/cni"},
	"internal/cri/metrics":       {"internal/cri", "internal/image", "internal/oci", "internal/cni"},
	"internal/cri/disk":          {"internal/cri", "internal/image", "internal/oci", "internal/cni"},
	"internal/oci":               {"internal/cri", "internal/kubelet", "internal/image", "internal/cni"},
	"internal/cni":               {"internal/cri", "internal/kubelet", "internal/image", "internal/oci"},
	"internal/image":             {"internal/cri", "internal/kubelet", "internal/oci", "internal/cni"},
	"internal/record":            {"internal/", "k8s.io/"},
	"internal/mount":             {"internal/", "k8s.io/"},
	"internal/disk":              {"internal/", "k8s.io/"},
	"internal/safepath":          {"internal/", "k8s.io/"},
	"internal/clockset":          {"internal/", "k8s.io/"},
	"internal/inbound":           {"internal/", "k8s.io/"},
	"internal/netns":             {"internal/kubelet", "internal/cri", "internal/apiserver", "k8s.io/api"},
	"internal/cgroup":            {"internal/kubelet", "internal/cri", "internal/apiserver", "k8s.io/api"},
	"internal/trace":             {"internal/", "k8s.io/"},
	"internal/reflector":         {"internal/", "k8s.io/apiserver"},
	"internal/config":            {"internal/kubelet", "internal/cri", "internal/apiserver", "internal/daemon"},
	"internal":                   {"k8s.io/kubernetes", "test"},
	"cmd":                        {"k8s.io/kubernetes", "test"},
}

type pkg struct {
	ImportPath, Dir           string
	Deps                      []string
	TestGoFiles, XTestGoFiles []string
}

func load(t *testing.T, flags ...string) []pkg {
	t.Helper()
	args := append([]string{"list", "-deps=false", "-json=ImportPath,Dir,Deps,TestGoFiles,XTestGoFiles"}, flags...)
	cmd := exec.Command("go", append(args, "./...")...)
	cmd.Dir = "../.."
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	var pkgs []pkg
	for dec := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p pkg
		if err := dec.Decode(&p); errors.Is(err, io.EOF) {
			return pkgs
		} else if err != nil {
			t.Fatal(err)
		}
		pkgs = append(pkgs, p)
	}
}

func below(path, folder string) bool {
	return path == folder || strings.HasPrefix(path, strings.TrimSuffix(folder, "/")+"/")
}

func TestImportsRunDownwards(t *testing.T) {
	pkgs := load(t)
	for folder, denied := range forbidden {
		found := false
		for _, p := range pkgs {
			if !below(p.ImportPath, module+folder) {
				continue
			}
			found = true
			for _, dep := range p.Deps {
				if bad := broken(p.ImportPath, dep, denied); bad != "" {
					t.Errorf("%s depends on %s; nothing in %s may depend on %s", p.ImportPath, dep, folder, bad)
				}
			}
		}
		if !found {
			t.Errorf("there is no package in %s: the rule holds nothing", folder)
		}
	}
}

// everybodys is what leaves may use as well.
const everybodys = module + "internal/safepath"

// broken returns the rule that a dependency breaks; a package may use its own subpackages.
func broken(path, dep string, denied []string) string {
	if dep == everybodys {
		return ""
	}
	for _, d := range denied {
		full := d
		if strings.HasPrefix(d, "internal") || d == "test" {
			full = module + d
		}
		if below(dep, full) && !below(dep, path) && !below(path, dep) {
			return d
		}
	}
	return ""
}

// serving are packages with servers that recover from a handler's panic.
var serving = []string{"k8s.io/apiserver/pkg/server", module + "internal/kubelet/server", module + "internal/cri"}

// A panic that a server recovers from is a failure of the tests in which it happens: every test
// program that may serve watches for it.
func TestSuitesThatServeWatchForPanics(t *testing.T) {
	packages := map[string]pkg{}
	for _, p := range load(t) {
		packages[p.ImportPath] = p
	}
	suites := 0
	for _, p := range load(t, "-test") {
		path, isTest := strings.CutSuffix(p.ImportPath, ".test")
		if !isTest || !slices.ContainsFunc(p.Deps, serves) {
			continue
		}
		suites++
		if !watches(t, packages[path]) {
			t.Errorf("the tests of %s do not notice a handler's panic: "+
				"func TestMain(m *testing.M) { os.Exit(panics.Watch(m).Run()) }", path)
		}
	}
	if suites == 0 {
		t.Error("no tests serve: the rule holds nothing")
	}
}

// serves reports whether a dependency serves. go list -test names it by its plain path, or by the
// path followed by the test that it is built for.
func serves(dep string) bool {
	path, _, _ := strings.Cut(dep, " ")
	return slices.Contains(serving, path)
}

func watches(t *testing.T, p pkg) bool {
	t.Helper()
	for _, file := range append(p.TestGoFiles, p.XTestGoFiles...) {
		doc, err := os.ReadFile(filepath.Join(p.Dir, file))
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(doc), "panics.Watch(m") {
			return true
		}
	}
	return false
}
