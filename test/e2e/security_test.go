package e2e

import (
	"crypto/tls"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
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
	c.hardened()
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
	audit := filepath.Join(t.TempDir(), "audit.log")
	c.flags = append(c.flags, "--seccomp-default=false", "--apiserver-arg=audit-log-path="+audit,
		"--apiserver-arg=audit-policy-file="+c.file("apiVersion: audit.k8s.io/v1\nkind: Policy\nrules: [{level: Metadata}]\n"))
	c.up()
	c.create(busybox("plain"))
	c.await("plain", "ready", ready)
	if got := strings.TrimSpace(c.exec("plain", "sh", "-c", "grep Seccomp: /proc/1/status | tr -s '\t' ' '")); got != "Seccomp: 0" {
		t.Errorf("got %q", got)
	}
	if log, err := os.ReadFile(audit); err != nil || !strings.Contains(string(log), `"requestURI":"/api/v1/namespaces/default/pods`) {
		t.Errorf("the API server's flag had no effect: %v, %d bytes of audit", err, len(log))
	}
}

// hardened holds what docs/security.md says of the CIS benchmark about a node that was started without options.
func (c *cluster) hardened() {
	c.t.Helper()
	// Files are root's; what is secret, root's alone. Others may pass through folders on their way to a pod's files.
	for _, root := range []string{c.data, c.run} {
		err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			rel, err := filepath.Rel(root, path)
			if err != nil {
				return err
			}
			if slices.ContainsFunc([]string{"cri", "log", "kubelet/pods", "store/layers", "images"}, func(of string) bool { return strings.HasPrefix(rel+"/", of+"/") }) {
				return nil // pods' own, or the test's
			}
			info, err := d.Info()
			if err != nil {
				return err
			}
			most := fs.FileMode(0o600)
			if d.IsDir() {
				most = 0o755
			}
			if owner := info.Sys().(*syscall.Stat_t); info.Mode().Perm()&^most != 0 || owner.Uid != 0 || owner.Gid != 0 {
				c.t.Errorf("%s: %v, owner %d:%d", path, info.Mode(), owner.Uid, owner.Gid)
			}
			return nil
		})
		if err != nil {
			c.t.Error(err)
		}
	}
	if info, err := os.Stat(filepath.Join(c.data, "etcd")); err != nil || info.Mode().Perm() != 0o700 {
		c.t.Errorf("etcd's folder: %v, %v", info, err)
	}
	anonymous := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, DisableKeepAlives: true}}
	// The node is Ready before the last hook of the API server has run.
	c.until("the API server is not live", func() bool {
		resp, err := anonymous.Get(c.url("/livez"))
		if err != nil {
			return false
		}
		_ = resp.Body.Close()
		return resp.StatusCode == http.StatusOK
	})
	for url, want := range map[string]int{
		c.url("/api/v1/secrets"): http.StatusForbidden, c.url("/api"): http.StatusForbidden, c.url("/metrics"): http.StatusForbidden,
		c.url("/debug/pprof/"): http.StatusForbidden, c.url("/livez"): http.StatusOK,
		c.kubeletURL("/pods"): http.StatusUnauthorized, c.kubeletURL("/metrics"): http.StatusUnauthorized, c.kubeletURL("/debug/pprof/"): http.StatusUnauthorized,
	} {
		res, err := anonymous.Get(url)
		if err != nil {
			c.t.Error(err)
			continue
		}
		if _ = res.Body.Close(); res.StatusCode != want {
			c.t.Errorf("%s without credentials: %d, want %d", url, res.StatusCode, want)
		}
	}
	// Nothing listens beyond these ports: etcd, the scheduler and the controllers have none.
	for _, where := range c.listeners() {
		host, port, err := net.SplitHostPort(where)
		if err != nil {
			c.t.Fatal(err)
		}
		ip := net.ParseIP(strings.Trim(host, "[]*"))
		switch {
		case ip != nil && ip.IsLoopback(): // streams of the runtime, by names that nobody can guess
		case port == "53" && ip != nil && !ip.IsUnspecified(): // names, on the pods' bridge
		case strings.HasSuffix(c.url(""), ":"+port), strings.HasSuffix(c.kubeletURL(""), ":"+port):
		default:
			c.t.Errorf("the node listens at %s", where)
		}
	}
}

func (c *cluster) url(path string) string        { return "https://127.0.0.1:" + c.flags[3] + path }
func (c *cluster) kubeletURL(path string) string { return "https://127.0.0.1:" + c.flags[5] + path }

// listeners returns where the node's process listens by TCP.
func (c *cluster) listeners() (out []string) {
	c.t.Helper()
	list, err := exec.CommandContext(c.t.Context(), "ss", "-Hltnp").Output()
	if err != nil {
		c.t.Fatal(err)
	}
	for line := range strings.Lines(string(list)) {
		if f := strings.Fields(line); len(f) >= 6 && strings.Contains(f[5], fmt.Sprintf("pid=%d,", c.pid())) {
			out = append(out, strings.Replace(f[3], "*:", "0.0.0.0:", 1))
		}
	}
	if len(out) < 2 {
		c.t.Errorf("the node listens only at %q", out)
	}
	return out
}
