package e2e

import (
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"

	"wherry.dev/test/images"
)

// confinement prints what a process can find out about its own confinement, in the kernel's words.
const confinement = `grep -E '^(Uid|CapEff|CapBnd|NoNewPrivs|Seccomp):' /proc/1/status | tr -s '\t' ' ' | cut -d' ' -f1,2`

// TestSecurityDefaults holds the table of docs/security.md: how a node that was started without
// options confines pods that say nothing, and those that do.
func TestSecurityDefaults(t *testing.T) {
	c := startCluster(t)
	for name, want := range map[string]struct {
		change func(*v1.Pod)
		status string
	}{
		"plain": {func(*v1.Pod) {}, "Uid: 0 CapEff: 00000000a80425fb CapBnd: 00000000a80425fb NoNewPrivs: 0 Seccomp: 2"},
		"unconfined": {func(p *v1.Pod) {
			p.Spec.SecurityContext = &v1.PodSecurityContext{SeccompProfile: &v1.SeccompProfile{Type: v1.SeccompProfileTypeUnconfined}}
		}, "Uid: 0 CapEff: 00000000a80425fb CapBnd: 00000000a80425fb NoNewPrivs: 0 Seccomp: 0"},
		"restricted": {func(p *v1.Pod) {
			p.Spec.SecurityContext = &v1.PodSecurityContext{
				RunAsNonRoot: new(true), RunAsUser: new(int64(1000)), SeccompProfile: &v1.SeccompProfile{Type: v1.SeccompProfileTypeRuntimeDefault},
			}
			p.Spec.Containers[0].SecurityContext = &v1.SecurityContext{
				AllowPrivilegeEscalation: new(false), Capabilities: &v1.Capabilities{Drop: []v1.Capability{"ALL"}},
			}
		}, "Uid: 1000 CapEff: 0000000000000000 CapBnd: 0000000000000000 NoNewPrivs: 1 Seccomp: 2"},
	} {
		p := busybox(name)
		want.change(p)
		c.create(p)
		c.await(name, "ready", ready)
		if got := strings.Join(strings.Fields(c.exec(name, "sh", "-c", confinement)), " "); got != want.status {
			t.Errorf("%s: %s, want %s", name, got, want.status)
		}
	}
	for what, script := range map[string]string{
		"the root file system is writable":  `touch /x && echo yes`,
		"the system's files are read-only":  `touch /sys/x /proc/sys/kernel/hostname 2>/dev/null || echo yes`,
		"the kernel's memory is hidden":     `head -c1 /proc/kcore 2>/dev/null | wc -c | grep -qx 0 && echo yes`,
		"no device of the machine is there": `ls /dev | grep -qE '^(vd|sd|nvme|kmsg|mem)' || echo yes`,
		"no namespace of users is made":     `unshare -U true 2>/dev/null || echo yes`,
		"low ports need no capability":      `grep -qx 0 /proc/sys/net/ipv4/ip_unprivileged_port_start && echo yes`,
		"a token is mounted":                `test -s /var/run/secrets/kubernetes.io/serviceaccount/token && echo yes`,
		"users are the machine's":           `tr -s ' ' < /proc/self/uid_map | grep -qx ' 0 0 4294967295' && echo yes`,
	} {
		if got := strings.TrimSpace(c.exec("plain", "sh", "-c", script)); got != "yes" {
			t.Errorf("%s: %q", what, got)
		}
	}
}

// TestSeccompDefaultOff: the flag restores upstream's default.
func TestSeccompDefaultOff(t *testing.T) {
	c := newCluster(t)
	c.addImage("busybox.tar", images.SaveBusybox)
	c.flags = append(c.flags, "--seccomp-default=false")
	c.up()
	c.create(busybox("plain"))
	c.await("plain", "ready", ready)
	if got := strings.TrimSpace(c.exec("plain", "sh", "-c", "grep Seccomp: /proc/1/status | tr -s '\t' ' '")); got != "Seccomp: 0" {
		t.Errorf("got %q", got)
	}
}
