package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// programs that the runtime and its tests run; their libraries come along.
var programs = []string{"crun", "runc", "conmon", "nft", "ip", "iscsiadm", "iscsid", "mkfs.ext4", "blkid"}

// modules are the kernel modules that pods need.
var modules = []string{
	"kernel/arch", "kernel/crypto", "kernel/lib", "kernel/net", "kernel/fs/overlayfs", "kernel/fs/quota",
	"kernel/drivers/virtio", "kernel/drivers/block/virtio_blk.ko", "kernel/drivers/net/veth.ko", "kernel/drivers/net/tun.ko", "kernel/drivers/net/wireguard",
	"kernel/drivers/scsi/scsi_common.ko", "kernel/drivers/scsi/scsi_mod.ko", "kernel/drivers/scsi/sd_mod.ko", "kernel/drivers/scsi/scsi_transport_iscsi.ko",
	"kernel/drivers/scsi/libiscsi.ko", "kernel/drivers/scsi/libiscsi_tcp.ko", "kernel/drivers/scsi/iscsi_tcp.ko",
	"kernel/drivers/target/target_core_mod.ko", "kernel/drivers/target/target_core_file.ko", "kernel/drivers/target/iscsi", "kernel/fs/configfs",
	"kernel/block", "modules.builtin", "modules.builtin.modinfo", "modules.order",
}

// buildInitramfs builds the machine's whole file system.
func buildInitramfs(ctx context.Context, o options, k kernel) (string, error) {
	root := filepath.Join(o.out, "root")
	if err := os.RemoveAll(root); err != nil {
		return "", err
	}
	for _, d := range []string{"bin", "dev", "etc", "lib", "new", "proc", "root", "run", "sbin", "sys", "tests", "tmp", "usr/bin", "usr/sbin", "var/tmp"} {
		if err := os.MkdirAll(filepath.Join(root, d), 0o755); err != nil {
			return "", err
		}
	}
	if err := addBusybox(ctx, root); err != nil {
		return "", err
	}
	for _, p := range slices.Concat(programs, o.programs) {
		if err := addProgram(ctx, root, p); err != nil {
			return "", err
		}
	}
	if err := addModules(ctx, root, k); err != nil {
		return "", err
	}
	if err := addTests(ctx, root, o.packages); err != nil {
		return "", err
	}
	for name, text := range map[string]string{
		"init": firstInit, "sbin/init": secondInit(o), "etc/passwd": "root:x:0:0:root:/root:/bin/sh\n", "etc/group": "root:x:0:\n",
		"etc/hosts": "127.0.0.1 localhost vm\n", "etc/resolv.conf": "nameserver 127.0.0.1\n",
		"etc/open-iscsi-test": "", "etc/iscsi/initiatorname.iscsi": "InitiatorName=iqn.2001-04.com.example:vm\n", "etc/iscsi/iscsid.conf": "node.startup = manual\n",
	} {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(root, name)), 0o755); err != nil {
			return "", err
		}
		if err := os.WriteFile(filepath.Join(root, name), []byte(text), 0o755); err != nil {
			return "", err
		}
	}
	initrd := filepath.Join(o.out, "initrd")
	pack := fmt.Sprintf("cd '%s' && find . | cpio --quiet -o -H newc -R 0:0", root)
	return initrd, command(ctx, "/bin/sh", "-c", pack+" > '"+absolute(initrd)+"'")
}

func absolute(path string) string {
	if a, err := filepath.Abs(path); err == nil {
		return a
	}
	return path
}

func addBusybox(ctx context.Context, root string) error {
	if err := copyFile("/bin/busybox", filepath.Join(root, "bin/busybox")); err != nil {
		return err
	}
	applets, err := exec.CommandContext(ctx, "/bin/busybox", "--list").Output()
	if err != nil {
		return fmt.Errorf("busybox --list: %w", err)
	}
	for a := range strings.FieldsSeq(string(applets)) {
		if a == "busybox" || a == "init" {
			continue
		}
		if err := os.Symlink("/bin/busybox", filepath.Join(root, "bin", a)); err != nil {
			return err
		}
	}
	return os.Symlink("/bin/busybox", filepath.Join(root, "sbin/modprobe")) // the kernel's own path for it
}

// addProgram copies a program and what it needs according to ldd.
func addProgram(ctx context.Context, root, name string) error {
	path, err := exec.LookPath(name)
	if err != nil {
		return err
	}
	files := []string{path}
	libs, err := exec.CommandContext(ctx, "ldd", path).Output()
	if _, ok := errors.AsType[*exec.ExitError](err); ok {
		err = nil // a static one, or a script
	}
	if err != nil {
		return fmt.Errorf("ldd %s: %w", path, err)
	}
	for f := range strings.FieldsSeq(string(libs)) {
		if strings.HasPrefix(f, "/") {
			files = append(files, f)
		}
	}
	for _, f := range files {
		if err := copyFile(f, filepath.Join(root, f)); err != nil {
			return err
		}
	}
	return nil
}

func addModules(ctx context.Context, root string, k kernel) error {
	lib := filepath.Join("lib/modules", k.version)
	for _, m := range modules {
		if err := copyTree(filepath.Join(k.root, lib, m), filepath.Join(root, lib, m)); err != nil {
			return err
		}
	}
	return command(ctx, "/bin/busybox", "depmod", "-b", absolute(root), k.version)
}

// addTests builds the packages' tests, each with a folder to run in.
func addTests(ctx context.Context, root string, packages []string) error {
	for _, p := range packages {
		dir := filepath.Join(root, "tests", p)
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
		cmd := exec.CommandContext(ctx, "go", "test", "-c", "-ldflags=-s -w", "-o", filepath.Join(absolute(dir), "run.test"), "./"+p)
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
		if msg, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("build the tests of %s: %w: %s", p, err, msg)
		}
		data := filepath.Join(p, "testdata")
		if _, err := os.Stat(data); err != nil {
			continue
		}
		if err := copyTree(data, filepath.Join(dir, "testdata")); err != nil {
			return err
		}
	}
	return nil
}

func copyTree(from, to string) error {
	return filepath.WalkDir(from, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		rel, err := filepath.Rel(from, path)
		if err != nil {
			return err
		}
		return copyFile(path, filepath.Join(to, rel))
	})
}

// copyFile follows links: the file that a library's name leads to gets that name in the machine.
func copyFile(from, to string) error {
	doc, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return err
	}
	if err := os.Remove(to); err != nil && !errors.Is(err, fs.ErrNotExist) { // one of busybox's links, which lead out of the machine
		return err
	}
	return os.WriteFile(to, doc, 0o755)
}
