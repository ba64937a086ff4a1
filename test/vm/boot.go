package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
)

// firstInit moves everything to a tmpfs: a runtime cannot pivot away from the initramfs itself.
const firstInit = `#!/bin/sh
mount -t tmpfs -o size=90%,mode=755 root /new
for d in bin etc lib lib64 root sbin tests usr; do [ -e /$d ] && cp -a /$d /new/; done
cd /new && mkdir -p dev proc run sys tmp var/tmp
exec switch_root /new /sbin/init
`

const resultMark, doneMark = "VM-RESULT", "VM-DONE"

// secondInit returns the machine's first process: it reaps children, as ash does while it waits.
func secondInit(o options) string {
	var b strings.Builder
	b.WriteString(`#!/bin/sh
export PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root TERM=dumb
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs dev /dev
mkdir -p /dev/pts /dev/shm /dev/mqueue
mount -t devpts -o gid=5,mode=620,ptmxmode=666 devpts /dev/pts
mount -t tmpfs -o mode=1777 shm /dev/shm
mount -t mqueue mqueue /dev/mqueue
mount -t cgroup2 cgroup2 /sys/fs/cgroup
modprobe virtio_pci; modprobe virtio_blk; modprobe quota_v2
mount -t ext4 -o prjquota /dev/vda /tmp && chmod 1777 /tmp
mount -t tmpfs -o mode=755 run /run
[ -e /dev/fd ] || ln -s /proc/self/fd /dev/fd
hostname vm
ip link set lo up
for m in overlay veth bridge tun nf_tables nft_chain_nat nft_masq nft_nat nft_ct nft_numgen nft_fib_inet; do modprobe $m; done
`)
	if o.folder != "" {
		fmt.Fprintf(&b, "mkdir -p %[1]s && mount -t ext4 /dev/vdb %[1]s\n", folderAt)
	}
	for _, j := range o.jobs() {
		if j.name == withSwap {
			b.WriteString("dd if=/dev/zero of=/tmp/swap bs=1M count=1024 && chmod 600 /tmp/swap && mkswap /tmp/swap && swapon /tmp/swap\n")
		}
		fmt.Fprintf(&b, "cd %s && %s; echo %s %s $?\n", j.dir, j.command, resultMark, j.name)
	}
	b.WriteString("cd /\n[ ! -d " + folderAt + " ] || umount -l " + folderAt + "\necho " + doneMark + "\nsync\npoweroff -f\n")
	return b.String()
}

// folderAt is where a command finds its folder.
const folderAt = "/folder"

// telling are the console's lines of tests that are shown; the log has all of them. Of a command all are shown.
var telling = regexp.MustCompile(`^(\s*--- |\s+\w+_test\.go:|PASS|FAIL|panic: |` + resultMark + `|Kernel panic)`)

// diskSize is the size of /tmp; the file is sparse.
const diskSize = 8 << 30

// makeDisk makes an empty disk: this kernel's tmpfs has no ID-mapped mounts, which pods with a user
// namespace need for their images. It limits what projects hold.
func makeDisk(ctx context.Context, out string) (string, error) {
	path := filepath.Join(out, "disk")
	if err := errors.Join(os.WriteFile(path, nil, 0o600), os.Truncate(path, diskSize)); err != nil {
		return "", err
	}
	return path, command(ctx, "mkfs.ext4", "-q", "-F", "-O", "^has_journal,quota,project", "-E", "quotatype=prjquota", path)
}

// copyFolder makes a disk with what is in a folder, and with room for more.
func copyFolder(ctx context.Context, out, folder string) (string, error) {
	path := filepath.Join(out, "folder")
	if err := errors.Join(os.WriteFile(path, nil, 0o600), os.Truncate(path, diskSize)); err != nil {
		return "", err
	}
	return path, command(ctx, "mkfs.ext4", "-q", "-F", "-O", "^has_journal", "-d", folder, path)
}

// bringBack copies the results of a command from its disk.
func bringBack(ctx context.Context, disk, folder string) error {
	to := filepath.Join(folder, resultsDir)
	if err := errors.Join(os.RemoveAll(to), os.MkdirAll(folder, 0o755)); err != nil {
		return err
	}
	return command(ctx, "debugfs", "-R", fmt.Sprintf("rdump %s %q", resultsDir, folder), disk)
}

// boot runs the machine and reads the results from its console.
func boot(ctx context.Context, o options, image, initrd string) (err error) {
	ctx, cancel := context.WithTimeout(ctx, o.limit)
	defer cancel()
	logPath := filepath.Join(o.out, "console.log")
	log, err := os.Create(logPath)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, log.Close()) }()
	disk, err := makeDisk(ctx, o.out)
	if err != nil {
		return err
	}
	var folder string
	drives := []string{"-drive", "if=virtio,format=raw,cache=unsafe,file=" + disk}
	if o.folder != "" {
		if folder, err = copyFolder(ctx, o.out, o.folder); err != nil {
			return err
		}
		drives = append(drives, "-drive", "if=virtio,format=raw,cache=unsafe,file="+folder)
	}
	perNode := o.cpus / 2
	half := func(id string) string { return fmt.Sprintf("memory-backend-ram,id=%s,size=%dM", id, o.memory/2) } // a NUMA node's
	cmd := exec.CommandContext(ctx, "qemu-system-x86_64", append(drives,
		"-accel", o.accel, "-cpu", "max", "-m", strconv.Itoa(o.memory), "-smp", fmt.Sprintf("%d,sockets=2,cores=%d", o.cpus, perNode),
		"-object", half("m0"), "-numa", fmt.Sprintf("node,nodeid=0,cpus=0-%d,memdev=m0", perNode-1),
		"-object", half("m1"), "-numa", fmt.Sprintf("node,nodeid=1,cpus=%d-%d,memdev=m1", perNode, o.cpus-1),
		"-kernel", image, "-initrd", initrd, "-append", "console=ttyS0 quiet panic=-1 psi=1 mitigations=off",
		"-display", "none", "-serial", "stdio", "-monitor", "none", "-nic", "none", "-no-reboot")...)
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	cmd.Stderr = log
	if err := cmd.Start(); err != nil {
		return err
	}
	shown := telling
	if o.command != "" {
		shown = regexp.MustCompile("")
	}
	results, rerr := readConsole(io.TeeReader(out, log), os.Stdout, shown)
	err = errors.Join(rerr, cmd.Wait())
	if folder != "" {
		err = errors.Join(err, bringBack(context.WithoutCancel(ctx), folder, o.folder))
	}
	if ctx.Err() != nil {
		err = fmt.Errorf("the machine was stopped after %v", o.limit)
	}
	return errors.Join(err, judge(o.jobs(), results, logPath))
}

// readConsole shows the lines that matter and collects the packages' exit codes.
func readConsole(console io.Reader, show io.Writer, shown *regexp.Regexp) (map[string]string, error) {
	results := map[string]string{}
	sc := bufio.NewScanner(console)
	sc.Buffer(nil, 1<<20)
	for sc.Scan() {
		line := strings.TrimRight(sc.Text(), "\r")
		if shown.MatchString(line) {
			if _, err := fmt.Fprintln(show, line); err != nil {
				return results, err
			}
		}
		if f := strings.Fields(line); len(f) == 3 && f[0] == resultMark {
			results[f[1]] = f[2]
		}
	}
	return results, sc.Err()
}

// judge returns an error that names every job that did not say that it passed.
func judge(jobs []job, results map[string]string, log string) error {
	var errs []error
	for _, j := range jobs {
		switch code, ok := results[j.name]; {
		case !ok:
			errs = append(errs, fmt.Errorf("%s gave no result; see %s", j.name, log))
		case code != "0":
			errs = append(errs, fmt.Errorf("%s failed on cgroup v2 (exit %s); see %s", j.name, code, log))
		}
	}
	return errors.Join(errs...)
}
