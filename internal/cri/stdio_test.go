package cri

import (
	"bytes"
	"fmt"
	"io"
	"regexp"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	"k8s.io/client-go/tools/remotecommand"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// streams is a script that tries on a process's standard streams what an owner may do: set the
// mode (to a harmless one) and the times. Then it prints where all its files lead, and which file
// systems they and the devices are on.
const streams = `for f in 0 1 2; do
	chmod 667 /proc/self/fd/$f; touch -d 2001-01-01 /proc/self/fd/$f
done 2>/dev/null
[ -t 0 ] || { cat <&0; echo x >/proc/self/fd/0; }
ls -l /proc/$$/fd
for f in 0 1 2; do stat -L -c 'of %d:' /proc/$$/fd/$f; done
stat -c 'of %d:' /dev/*
echo end`

// streamOf matches where a container's file may lead: three files, none of which is the
// machine's.
var streamOf = regexp.MustCompile(`[ ][012] -> (/dev/null|/null \(deleted\)|pipe:\[\d+\]|/dev/pts/\d+|/tmp/out)$`)

// machineNull returns the owner of the machine's null device.
func machineNull(t *testing.T) string {
	t.Helper()
	var st unix.Stat_t
	if err := unix.Stat("/dev/null", &st); err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("%d:%d %o of %d", st.Uid, st.Gid, st.Mode, st.Mtim.Sec)
}

// machineDevices returns the file systems of the machine's devices, as streams prints them.
func machineDevices(t *testing.T) (all []string) {
	t.Helper()
	for _, path := range []string{"/dev", "/dev/pts"} {
		var st unix.Stat_t
		if err := unix.Stat(path, &st); err != nil {
			t.Fatal(err)
		}
		all = append(all, fmt.Sprintf("of %d:", st.Dev))
	}
	return all
}

// A container without a standard input used to get the machine's null device, and so did every
// command that was run in it. crun made the container's user its owner, and root in a container
// is that anyway. `chmod 0 /proc/self/fd/0` took /dev/null away from every program on the
// machine.
func TestNullDeviceOfTheMachineIsNotGivenAway(t *testing.T) {
	eachRuntime(t, func(t *testing.T, n *node) {
		before := machineNull(t)
		t.Cleanup(func() {
			if machineNull(t) != before {
				n.must(unix.Chown("/dev/null", 0, 0))
				n.must(unix.Chmod("/dev/null", 0o666))
			}
		})
		for user, c := range n.users() {
			p := n.pod(c.pod)
			for _, tty := range []bool{false, true} {
				p.eachStream(c, tty, func(what, out string) {
					what = user + ", " + what
					checkStreams(t, what, out, c.machine)
					if now := machineNull(t); now != before {
						t.Fatalf("%s: the machine's null device was %s and is %s", what, before, now)
					}
				})
			}
		}
	})
}

// checkStreams checks what the script streams wrote.
func checkStreams(t *testing.T, what, out string, machine bool) {
	t.Helper()
	var links, systems int
	for line := range strings.Lines(out) {
		line = strings.TrimSpace(line)
		if strings.Contains(line, " -> ") {
			links++
			if !streamOf.MatchString(line) {
				t.Errorf("%s has %q", what, line)
			}
		}
		if strings.HasPrefix(line, "of ") {
			systems++
		}
		for _, d := range machineDevices(t) {
			if line == d && !machine {
				t.Errorf("%s has a device of the machine:\n%s", what, out)
			}
		}
	}
	if links != 3 || systems < 10 {
		t.Errorf("%s: %q", what, out)
	}
}

// eachStream runs the script in a container, in each way in which a command can run there.
func (p *pod) eachStream(c someone, tty bool, check func(what, out string)) {
	p.t.Helper()
	cfg := containerConfig(fmt.Sprint("main", tty), "sh", "-c", streams+"\nsleep 1000")
	cfg.Tty = tty
	c.change(cfg.Linux.SecurityContext)
	id := p.start(cfg)
	what := fmt.Sprintf("terminal %v", tty)
	log := func() string { return logText(p.t, p.status(id).GetLogPath(), "stdout") }
	waitFor(p.t, what, func() bool { return strings.Contains(log(), "\nend") })
	check(what, log())
	check(what+", exec", p.exec(id, "sh", "-c", streams))
	for _, tty := range []bool{false, true} {
		var out bytes.Buffer
		req := &runtimeapi.ExecRequest{ContainerId: id, Cmd: []string{"sh", "-c", streams}, Stdout: true, Tty: tty}
		p.must(p.stream(req, remotecommand.StreamOptions{Stdout: &out, Tty: tty}))
		check(fmt.Sprintf("%s, exec stream, terminal %v", what, tty), out.String())
	}
	// A command without an output writes its result to a file.
	req := &runtimeapi.ExecRequest{ContainerId: id, Cmd: []string{"sh", "-c", "(" + streams + ") >/tmp/out"}, Stderr: true}
	p.must(p.stream(req, remotecommand.StreamOptions{Stderr: io.Discard}))
	check(what+", exec without output", p.exec(id, "cat", "/tmp/out"))
}

// someone is a user that a container can have.
type someone struct {
	pod     func(*runtimeapi.PodSandboxConfig)
	change  secChange
	machine bool // some of its devices are the machine's, but it does not own them
}

// users returns all kinds of users, some in pods with an init.
func (n *node) users() map[string]someone {
	shared := func(o *runtimeapi.NamespaceOption) { o.Pid = runtimeapi.NamespaceMode_POD }
	all := map[string]someone{
		"root": {pod: func(*runtimeapi.PodSandboxConfig) {}, change: func(*runtimeapi.LinuxContainerSecurityContext) {}},
		"somebody": {
			pod: func(c *runtimeapi.PodSandboxConfig) { shared(c.Linux.SecurityContext.NamespaceOptions) },
			change: func(s *runtimeapi.LinuxContainerSecurityContext) {
				shared(s.NamespaceOptions)
				s.RunAsUser = number(1234)
			},
		},
	}
	if n.translates() {
		// Nobody may make devices in a user namespace: runtimes show the machine's.
		all["user namespace"] = someone{machine: true,
			pod: func(c *runtimeapi.PodSandboxConfig) { shared(c.Linux.SecurityContext.NamespaceOptions); withUserns(c) },
			change: func(s *runtimeapi.LinuxContainerSecurityContext) {
				shared(s.NamespaceOptions)
				s.NamespaceOptions.UsernsOptions = podUserns(65536)
			},
		}
	}
	return all
}
