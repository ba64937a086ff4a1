package runtimes

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// Options say which runtime of somebody else's to start, and with what.
type Options struct {
	// Path of its program; what belongs to it is taken from the same folder, or else from PATH.
	Path string
	// Pause is the image, from one of the archives, that sandboxes run.
	Pause    string
	Archives []string
}

// Other is a runtime of somebody else's. Its program is not part of this repository: the
// environment says where it is.
type Other struct {
	Env   string
	start func(context.Context, Options) (*Runtime, error)
}

// others are all that a test can be told to run on.
var others = []Other{{"CONTAINERD", Containerd}, {"CRIO", CRIO}, {"DOCKER", Docker}}

// Chosen returns the runtime that the environment names, if it names one.
func Chosen() (o Other, ok bool) {
	for _, o := range others {
		if os.Getenv(o.Env) != "" {
			return o, true
		}
	}
	return Other{}, false
}

// Start starts the runtime with the images of the archives.
func (o Other) Start(ctx context.Context, pause string, archives ...string) (*Runtime, error) {
	return o.start(ctx, Options{Path: os.Getenv(o.Env), Pause: pause, Archives: archives})
}

// newOther returns a runtime that is still to be started, by its name, and its network.
func newOther(name string) (*Runtime, bridged, error) {
	dir, err := os.MkdirTemp("", name+"-rt-")
	if err != nil {
		return nil, bridged{}, err
	}
	id := newID()
	r := &Runtime{Dir: dir, Cgroup: "/" + name + "-" + id}
	pods, err := newBridged(dir, id)
	if err != nil {
		return nil, bridged{}, errors.Join(err, os.RemoveAll(dir))
	}
	return r, pods, nil
}

// beside returns the program in the folder of another, or else the one in PATH.
func beside(path, name string) string {
	if full, err := exec.LookPath(path); err == nil {
		if p := filepath.Join(filepath.Dir(full), name); fileExists(p) {
			return p
		}
	}
	return name
}

// besidePath is the environment with the program's folder at the head of PATH.
func besidePath(env []string, path string) []string {
	return append(env, "PATH="+filepath.Dir(path)+":"+os.Getenv("PATH"))
}

func fileExists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// importAll adds archives to a runtime that was just started.
func (r *Runtime) importAll(ctx context.Context, archives []string) (*Runtime, error) {
	for _, a := range archives {
		if err := r.Import(ctx, a); err != nil {
			return nil, errors.Join(err, r.Close(ctx))
		}
	}
	return r, nil
}

// writeFiles writes what a runtime reads at its start.
func writeFiles(files map[string]string) error {
	for path, text := range files {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			return err
		}
	}
	return nil
}

// foldersOfTheMachine returns what removes those folders, outer ones first, that are not there now
// and are empty then: a runtime makes some whatever its configuration says.
func foldersOfTheMachine(dirs ...string) (remove func()) {
	missing := slices.DeleteFunc(dirs, fileExists)
	return func() {
		for _, d := range slices.Backward(missing) {
			_ = os.Remove(d) // somebody else may have come to use it
		}
	}
}

// pluginDirs are where CNI plugins are installed: by Debian's package, and by everybody else.
var pluginDirs = []string{"/usr/lib/cni", "/opt/cni/bin"}

// bridged is a network of the CNI plugin bridge, as people run it.
type bridged struct {
	id      string // of the network and its link
	plugins string
	conf    string // folder
}

const conflist = `{"cniVersion": "0.4.0", "name": %[1]q, "plugins": [{
  "type": "bridge", "bridge": %[1]q, "isGateway": true, "ipMasq": true,
  "ipam": {"type": "host-local", "dataDir": %[2]q, "ranges": [[{"subnet": %[3]q}]], "routes": [{"dst": "0.0.0.0/0"}]}
}]}
`

// newBridged configures a network below dir.
func newBridged(dir, id string) (bridged, error) {
	n := bridged{id: id, conf: filepath.Join(dir, "net.d")}
	for _, d := range pluginDirs {
		if fileExists(filepath.Join(d, "bridge")) {
			n.plugins = d
			break
		}
	}
	if n.plugins == "" {
		return n, fmt.Errorf("no CNI plugin bridge in %s: apt-get install containernetworking-plugins",
			strings.Join(pluginDirs, ", "))
	}
	text := fmt.Sprintf(conflist, id, filepath.Join(dir, "cni"), network())
	return n, writeFiles(map[string]string{filepath.Join(n.conf, "net.conflist"): text})
}

// remove removes what the plugin leaves: its bridge, and the rules that masquerade pods whose network
// namespace was gone when they left.
func (n bridged) remove(ctx context.Context) error {
	err := exec.CommandContext(ctx, "ip", "link", "del", n.id).Run()
	if _, ok := errors.AsType[*exec.ExitError](err); ok {
		err = nil // there was no pod
	}
	return errors.Join(err, n.removeRules(ctx))
}

func (n bridged) removeRules(ctx context.Context) error {
	rules, err := exec.CommandContext(ctx, "iptables-save", "-t", "nat").Output()
	if errors.Is(err, exec.ErrNotFound) {
		return nil // nor did the plugin find it
	}
	if err != nil {
		return fmt.Errorf("iptables-save: %w", err)
	}
	var undo strings.Builder
	for line := range strings.Lines(string(rules)) {
		rule, ours := strings.CutPrefix(line, "-A POSTROUTING ")
		_, chain, jumps := strings.Cut(strings.TrimSpace(rule), " -j ")
		if ours && jumps && strings.Contains(rule, `name: \"`+n.id+`\"`) {
			fmt.Fprintf(&undo, "-D POSTROUTING %s-F %s\n-X %s\n", rule, chain, chain)
		}
	}
	if undo.Len() == 0 {
		return nil
	}
	cmd := exec.CommandContext(ctx, "iptables-restore", "--noflush")
	cmd.Stdin = strings.NewReader("*nat\n" + undo.String() + "COMMIT\n")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("iptables-restore: %w: %s", err, out)
	}
	return nil
}

// cappedRunc is runc for containers that ask for what this machine may not have. An OOM score below
// this process's takes a capability. Huge pages may be limited by version 2 of cgroups while the rest
// is in version 1: runc 1.1 does not look there. (containerd has settings for both.)
const cappedRunc = `#!/bin/sh
for arg; do
  if [ "$last" = --bundle ]; then
    sed -i 's/"oomScoreAdj": *-[0-9]*/"oomScoreAdj":0/' "$arg/config.json"
    [ -e /sys/fs/cgroup/hugetlb ] || [ -e /sys/fs/cgroup/cgroup.controllers ] ||
      sed -i -z 's/"hugepageLimits": *\[[^]]*\]/"hugepageLimits":[]/' "$arg/config.json"
  fi
  last=$arg
done
exec runc "$@"
`

func writeCappedRunc(path string) error {
	return os.WriteFile(path, []byte(cappedRunc), 0o755) //nolint:gosec // a program
}
