package disks

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

const (
	iqn    = "iqn.2001-04.com.example:storage"
	portal = "127.0.0.1:3260"
	config = "/sys/kernel/config"
)

// newTarget is the kernel's own target at loopback, with LUNs 1 and 2, and open-iscsi's daemon. It is for machines that
// belong to the test alone (make test-v2).
func newTarget(t *testing.T) (tpg string) {
	t.Helper()
	if _, err := os.Stat("/etc/open-iscsi-test"); err != nil {
		t.Skip("only on a machine that belongs to the test: make test-v2")
	}
	for _, m := range []string{"sd_mod", "iscsi_tcp", "target_core_mod", "target_core_file", "iscsi_target_mod"} {
		shell(t, "modprobe "+m)
	}
	if err := unix.Mount("configfs", config, "configfs", 0, ""); err != nil && !errors.Is(err, unix.EBUSY) {
		t.Fatal(err)
	}
	target := filepath.Join(config, "target/iscsi", iqn)
	tpg = filepath.Join(target, "tpgt_1")
	for lun := 1; lun <= 2; lun++ {
		file := filepath.Join(t.TempDir(), "disk")
		core := fmt.Sprintf("%s/target/core/fileio_%d/disk", config, lun)
		shell(t, fmt.Sprintf("mkdir -p %[1]s && truncate -s 16M %[2]s && echo fd_dev_name=%[2]s,fd_dev_size=%[3]d > %[1]s/control && echo 1 > %[1]s/enable", core, file, 16<<20))
		shell(t, fmt.Sprintf("mkdir -p %[1]s/lun/lun_%[2]d && ln -s %[3]s %[1]s/lun/lun_%[2]d/disk", tpg, lun, core))
	}
	shell(t, fmt.Sprintf("mkdir -p %[1]s/np/%[2]s && cd %[1]s/attrib && echo 0 > authentication && echo 1 > generate_node_acls && echo 0 > demo_mode_write_protect && echo 1 > ../enable", tpg, portal))
	shell(t, "mkdir -p /run/lock && iscsid")
	t.Cleanup(func() {
		ctx := context.WithoutCancel(t.Context())
		for _, c := range []string{
			"iscsiadm -k 0", "echo 0 > " + tpg + "/enable", "rmdir " + tpg + "/np/*",
			"rm " + tpg + "/lun/lun_*/disk", "rmdir " + tpg + "/lun/lun_* " + tpg + " " + target,
			"rmdir " + config + "/target/core/fileio_*/disk " + config + "/target/core/fileio_*",
		} {
			if out, err := exec.CommandContext(ctx, "sh", "-c", c).CombinedOutput(); err != nil {
				t.Errorf("%s: %v: %s", c, err, out)
			}
		}
	})
	return tpg
}

func shell(t *testing.T, command string) {
	t.Helper()
	if out, err := exec.CommandContext(t.Context(), "sh", "-c", command).CombinedOutput(); err != nil {
		t.Fatalf("%s: %v: %s", command, err, out)
	}
}

func scsiDisks(t *testing.T) []string {
	t.Helper()
	all, err := filepath.Glob("/sys/block/sd*")
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// TestOpenISCSI with the kernel's own target: disks come and go, and no others do; what was written is there again.
func TestOpenISCSI(t *testing.T) {
	tpg := newTarget(t)
	var n Node
	var announced []string
	announce := func(portal string) error {
		announced = append(announced, portal)
		return t.Context().Err()
	}
	disk := func(lun int32) *Target {
		return &Target{Portals: []string{portal}, IQN: iqn, LUN: lun, Interface: "default"}
	}
	login := func(lun int32) string {
		t.Helper()
		began := time.Now()
		device, err := n.Login(t.Context(), disk(lun), nil, announce)
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("LUN %d is %s after %v", lun, device, time.Since(began))
		return device
	}
	first := login(1)
	if got := scsiDisks(t); len(got) != 1 {
		t.Errorf("the node has disks %q: no more than it asked for", got)
	}
	if again := login(1); again != first || len(announced) != 1 {
		t.Errorf("%s, and then %s; sessions %q", first, again, announced)
	}
	dir := t.TempDir()
	must(t, Mount(first, dir, "", nil))
	must(t, os.WriteFile(filepath.Join(dir, "file"), []byte("hello"), 0o600))
	if _, ok := errors.AsType[*BusyError](n.Leave(t.Context(), disk(1), announced)); !ok {
		t.Error("a disk is taken away under what is mounted")
	}
	second := login(2)
	if second == first || len(announced) != 1 {
		t.Errorf("two disks are %s and %s; sessions %q", first, second, announced)
	}
	must(t, Unmount(dir))
	must(t, n.Leave(t.Context(), disk(1), announced))
	if got := scsiDisks(t); len(got) != 1 {
		t.Errorf("the node has disks %q", got)
	}
	first = login(1)
	must(t, Mount(first, dir, "ext4", []string{"ro"}))
	content, err := os.ReadFile(filepath.Join(dir, "file"))
	if err != nil || string(content) != "hello" {
		t.Errorf("%q, %v", content, err)
	}
	must(t, Unmount(dir))
	for range 2 { // it can be repeated
		must(t, n.Leave(t.Context(), disk(1), announced))
		must(t, n.Leave(t.Context(), disk(2), announced))
		must(t, n.Logout(t.Context(), disk(1), announced))
	}
	if there, err := n.Sessions(disk(1)); err != nil || len(there) > 0 || len(scsiDisks(t)) > 0 {
		t.Errorf("sessions %q, %v, disks %q", there, err, scsiDisks(t))
	}

	t.Run("with CHAP, as somebody", func(t *testing.T) {
		shell(t, fmt.Sprintf("cd %s && echo 1 > attrib/authentication && printf me > auth/userid && printf secretsecret > auth/password", tpg))
		own := disk(1)
		own.Template, own.Interface, own.Initiator = "default", portal+":pv", "iqn.2001-04.com.example:node"
		secrets := map[string]string{"node.session.auth.authmethod": "CHAP", "node.session.auth.username": "me", "node.session.auth.password": "wrongwrongwrong"}
		if _, err := n.Login(t.Context(), own, secrets, announce); err == nil || !strings.Contains(err.Error(), "authorization failure") {
			t.Errorf("a wrong password: %v", err)
		}
		secrets["node.session.auth.password"] = "secretsecret"
		if _, err := n.Login(t.Context(), own, secrets, announce); err != nil {
			t.Fatal(err)
		}
		must(t, n.Leave(t.Context(), own, own.Portals))
		must(t, n.Logout(t.Context(), own, own.Portals))
		out, err := exec.CommandContext(t.Context(), "iscsiadm", "-m", "iface").Output()
		if err != nil || strings.Contains(string(out), ":pv") {
			t.Errorf("interfaces: %s, %v", out, err)
		}
	})
	t.Run("a LUN that is not there", func(t *testing.T) {
		shell(t, fmt.Sprintf("echo 0 > %s/attrib/authentication", tpg))
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		if _, err := n.Login(ctx, disk(7), nil, announce); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%v", err)
		}
		must(t, n.Logout(t.Context(), disk(7), []string{portal}))
	})
	t.Run("a target that is not there", func(t *testing.T) {
		other := disk(1)
		other.IQN += "-other"
		_, err := n.Login(t.Context(), other, nil, announce)
		if err == nil || !strings.Contains(err.Error(), "failed to get any path for iscsi disk") {
			t.Errorf("%v", err)
		}
		t.Log(err)
		out, err := exec.CommandContext(t.Context(), "iscsiadm", "-m", "node").CombinedOutput()
		if slices.Contains(strings.Fields(string(out)), other.IQN) {
			t.Errorf("it is remembered: %s, %v", out, err)
		}
	})
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestPortals(t *testing.T) {
	for address, want := range map[string]string{
		"10.0.0.1": "10.0.0.1:3260", "10.0.0.1:3261": "10.0.0.1:3261", "fd00::1": "[fd00::1]:3260", "[fd00::1]": "[fd00::1]:3260",
		"[fd00::1]:1": "[fd00::1]:1", "storage.example.com": "storage.example.com:3260",
	} {
		if got := Portal(address); got != want {
			t.Errorf("%s is %s, not %s", address, got, want)
		}
	}
	if !samePortal("[fd00:0::1]:3260", "fd00::1", "3260") || samePortal("10.0.0.1:3260", "10.0.0.11", "3260") || samePortal("10.0.0.1:3260", "10.0.0.1", "3261") {
		t.Error("portals are taken for others")
	}
}
