package oci

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

func TestCommand(t *testing.T) {
	img := ocispec.ImageConfig{Entrypoint: []string{"entry"}, Cmd: []string{"cmd"}}
	for name, c := range map[string]struct {
		command, args []string
		img           ocispec.ImageConfig
		want          string
	}{
		"image's":             {nil, nil, img, "entry cmd"},
		"args replace cmd":    {nil, []string{"a"}, img, "entry a"},
		"command drops both":  {[]string{"c"}, nil, img, "c"},
		"command and args":    {[]string{"c"}, []string{"a"}, img, "c a"},
		"empty entrypoint":    {nil, nil, ocispec.ImageConfig{Entrypoint: []string{""}, Cmd: []string{"cmd"}}, "cmd"},
		"cmd alone":           {nil, nil, ocispec.ImageConfig{Cmd: []string{"cmd"}}, "cmd"},
		"nothing in an image": {nil, []string{"a"}, ocispec.ImageConfig{}, "a"},
	} {
		got, err := Command(&runtimeapi.ContainerConfig{Command: c.command, Args: c.args}, c.img)
		if err != nil || strings.Join(got, " ") != c.want {
			t.Errorf("%s: %q, %v; want %q", name, got, err, c.want)
		}
	}
	if _, err := Command(&runtimeapi.ContainerConfig{}, ocispec.ImageConfig{}); err == nil {
		t.Error("no command at all was accepted")
	}
}

func TestEnvironment(t *testing.T) {
	c := &runtimeapi.ContainerConfig{Envs: []*runtimeapi.KeyValue{{Key: "A", Value: []byte("pod")}, {Key: "C", Value: []byte("1=2")}}}
	got := Environment(c, ocispec.ImageConfig{Env: []string{"PATH=/img", "A=img", "B=img"}}, "host")
	want := []string{"PATH=/img", "HOSTNAME=host", "A=pod", "B=img", "C=1=2"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestSignals(t *testing.T) {
	for in, want := range map[string]unix.Signal{
		"TERM": 15, "SIGTERM": 15, "sigkill": 9, "9": 9, "SIGRTMIN+3": 37, "RTMIN": 34, "RTMINPLUS3": 37, "RTMAX": 64, "SIGRTMAX-1": 63, "POLL": 29,
	} {
		if got, err := ParseSignal(in); err != nil || got != want {
			t.Errorf("ParseSignal(%q) = %d, %v", in, got, err)
		}
	}
	for _, bad := range []string{"", "NOPE", "0", "65", "SIGRTMIN+99", "RTMIN+x"} {
		if got, err := ParseSignal(bad); err == nil {
			t.Errorf("ParseSignal(%q) = %d", bad, got)
		}
	}
	c := &runtimeapi.ContainerConfig{StopSignal: runtimeapi.Signal_SIGNAL_SIGRTMINPLUS3}
	if s, err := StopSignal(c, ocispec.ImageConfig{StopSignal: "SIGQUIT"}); err != nil || s != "SIGRTMINPLUS3" {
		t.Errorf("the pod's signal: %q, %v", s, err)
	}
	if s, err := StopSignal(&runtimeapi.ContainerConfig{}, ocispec.ImageConfig{StopSignal: "3"}); err != nil || s != "SIGQUIT" {
		t.Errorf("the image's signal: %q, %v", s, err)
	}
}

func TestEveryCRISignalHasANumber(t *testing.T) {
	for n, name := range runtimeapi.Signal_name {
		if n == 0 {
			continue
		}
		if _, err := ParseSignal(strings.TrimPrefix(name, "SIGNAL_")); err != nil {
			t.Error(err)
		}
	}
}

func TestCapabilities(t *testing.T) {
	all := CapabilityNames(1<<41 - 1)
	if len(all) != len(allCapabilities) {
		t.Fatalf("%d capabilities", len(all))
	}
	sec := func(privileged bool, add, drop, ambient []string) *runtimeapi.LinuxContainerSecurityContext {
		return &runtimeapi.LinuxContainerSecurityContext{Privileged: privileged,
			Capabilities: &runtimeapi.Capability{AddCapabilities: add, DropCapabilities: drop, AddAmbientCapabilities: ambient}}
	}
	for name, c := range map[string]struct {
		sec       *runtimeapi.LinuxContainerSecurityContext
		available []string
		want      []string
	}{
		"default":      {nil, all, defaultCapabilities},
		"add":          {sec(false, []string{"net_admin"}, nil, nil), all, append(slices.Clone(defaultCapabilities), "CAP_NET_ADMIN")},
		"drop":         {sec(false, nil, []string{"CAP_CHOWN"}, nil), all, slices.DeleteFunc(slices.Clone(defaultCapabilities), func(s string) bool { return s == "CAP_CHOWN" })},
		"only":         {sec(false, []string{"SYS_TIME"}, []string{"ALL"}, nil), all, []string{"CAP_SYS_TIME"}},
		"all but one":  {sec(false, []string{"ALL"}, []string{"SYS_TIME"}, nil), all[:26], slices.DeleteFunc(slices.Clone(all[:26]), func(s string) bool { return s == "CAP_SYS_TIME" })},
		"privileged":   {sec(true, nil, []string{"ALL"}, nil), all, all},
		"not ours":     {sec(true, nil, nil, nil), all[:3], all[:3]},
		"ambient only": {sec(false, nil, []string{"ALL"}, []string{"KILL"}), all, []string{"CAP_KILL"}},
	} {
		got, err := Capabilities(c.sec, c.available)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		want := slices.Sorted(slices.Values(c.want))
		if diff := cmp.Diff(want, slices.Sorted(slices.Values(got.Bounding))); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
}

func TestResolveUser(t *testing.T) {
	root := t.TempDir()
	write := func(path, text string) {
		p := filepath.Join(root, path)
		if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(p, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write("usr/share/passwd", "# a comment\nroot:x:0:0::/root:/bin/sh\nweb:x:33:34::/:\nbroken\nbad:x:nan:1::\n4242:x:77:78::/:\n")
	write("etc/group", "root:x:0:\nwww:x:34:\nlog:x:40:web,other\n")
	if err := os.Symlink("/usr/share/passwd", filepath.Join(root, "etc/passwd")); err != nil { // absolute, inside the image
		t.Fatal(err)
	}
	id := func(n int64) *runtimeapi.Int64Value { return &runtimeapi.Int64Value{Value: n} }
	for name, c := range map[string]struct {
		sec   *runtimeapi.LinuxContainerSecurityContext
		image string
		want  specs.User
	}{
		"nobody said":     {nil, "", specs.User{AdditionalGids: []uint32{0}}},
		"image's name":    {nil, "web", specs.User{UID: 33, GID: 34, AdditionalGids: []uint32{34, 40}}},
		"image's group":   {nil, "web:log", specs.User{UID: 33, GID: 40, AdditionalGids: []uint32{40}}},
		"image's numbers": {nil, "5:6", specs.User{UID: 5, GID: 6, AdditionalGids: []uint32{6}}},
		"numeric name":    {nil, "4242", specs.User{UID: 77, GID: 78, AdditionalGids: []uint32{78}}},
		"pod's user":      {&runtimeapi.LinuxContainerSecurityContext{RunAsUser: id(33)}, "0:0", specs.User{UID: 33, GID: 34, AdditionalGids: []uint32{34, 40}}},
		"pod's group":     {&runtimeapi.LinuxContainerSecurityContext{RunAsUser: id(33), RunAsGroup: id(9)}, "", specs.User{UID: 33, GID: 9, AdditionalGids: []uint32{9, 40}}},
		"strict": {&runtimeapi.LinuxContainerSecurityContext{RunAsUser: id(33), SupplementalGroups: []int64{50},
			SupplementalGroupsPolicy: runtimeapi.SupplementalGroupsPolicy_Strict}, "", specs.User{UID: 33, GID: 34, AdditionalGids: []uint32{34, 50}}},
	} {
		got, err := ResolveUser(c.sec, c.image, root)
		if err != nil {
			t.Errorf("%s: %v", name, err)
		} else if diff := cmp.Diff(c.want, got); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
	if _, err := ResolveUser(nil, "nosuch", root); err == nil || !strings.Contains(err.Error(), "unable to find user nosuch") {
		t.Errorf("a missing user: %v", err)
	}
	if _, err := ResolveUser(nil, "web:nosuch", root); err == nil || !strings.Contains(err.Error(), "unable to find group nosuch") {
		t.Errorf("a missing group: %v", err)
	}
}

// TestUserFilesCannotLeaveTheImage: a link to the host's file must not be followed.
func TestUserFilesCannotLeaveTheImage(t *testing.T) {
	dir := t.TempDir()
	secret := filepath.Join(dir, "secret")
	if err := os.WriteFile(secret, []byte("evil:x:0:0::/:\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	root := filepath.Join(dir, "root")
	if err := os.MkdirAll(filepath.Join(root, "etc"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, link := range []string{secret, "../../secret", "../../../../../../../../" + secret} {
		if err := os.Symlink(link, filepath.Join(root, "etc/passwd")); err != nil {
			t.Fatal(err)
		}
		if u, err := ResolveUser(nil, "evil", root); err == nil {
			t.Errorf("link %s: %+v", link, u)
		}
		if err := os.Remove(filepath.Join(root, "etc/passwd")); err != nil {
			t.Fatal(err)
		}
	}
	if err := unix.Mkfifo(filepath.Join(root, "etc/passwd"), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := ResolveUser(nil, "0", root); err == nil {
		t.Error("a FIFO was read")
	}
}

func TestMountsArePlacedParentsFirst(t *testing.T) {
	in := Input{Config: &runtimeapi.ContainerConfig{}, Mounts: []ResolvedMount{
		{Mount: &runtimeapi.Mount{ContainerPath: "/a/b/c"}, Source: "/3"}, {Mount: &runtimeapi.Mount{ContainerPath: "/a"}, Source: "/1"},
		{Mount: &runtimeapi.Mount{ContainerPath: "/a/b/", Readonly: true}, Source: "/2"}, {Mount: &runtimeapi.Mount{ContainerPath: "/dev/shm"}, Source: "/own"},
	}, Sandbox: Sandbox{Shm: "/sandbox/shm"}}
	var got []string
	for _, m := range in.mounts() {
		if m.Type == "bind" {
			got = append(got, m.Source+" "+m.Destination+" "+m.Options[len(m.Options)-1])
		}
	}
	if diff := cmp.Diff([]string{"/1 /a rw", "/2 /a/b ro", "/own /dev/shm rw", "/3 /a/b/c rw"}, got); diff != "" {
		t.Error(diff)
	}
}

func FuzzUserDB(f *testing.F) {
	f.Add("root:x:0:0::/:\n", "g:x:1:root\n", "root:g")
	f.Add("a:b:c", ":::", "4294967295")
	f.Fuzz(func(t *testing.T, passwd, group, user string) {
		root := t.TempDir()
		if err := os.Mkdir(filepath.Join(root, "etc"), 0o755); err != nil {
			t.Fatal(err)
		}
		for name, text := range map[string]string{"passwd": passwd, "group": group} {
			if err := os.WriteFile(filepath.Join(root, "etc", name), []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		u, err := ResolveUser(nil, user, root)
		if err == nil && (u.UID == 1<<32-1 || u.GID == 1<<32-1) {
			t.Errorf("the kernel's \"none\" was taken for an ID: %+v", u)
		}
	})
}

func FuzzParseSignal(f *testing.F) {
	f.Add("SIGRTMIN+3")
	f.Fuzz(func(t *testing.T, s string) {
		n, err := ParseSignal(s)
		if err != nil {
			return
		}
		if again, err := ParseSignal(SignalName(n)); err != nil || again != n {
			t.Errorf("%q is %d, whose name %q is %d, %v", s, n, SignalName(n), again, err)
		}
	})
}
