// Vm runs tests on pure cgroup v2, whatever this machine has: it builds the packages' test binaries
// and an initramfs with crun, runc, conmon, nft and busybox, and boots it in QEMU under Debian's
// cloud kernel, which is downloaded but not installed.
//
//	go run ./test/vm [-run REGEXP] [-out DIR] [PACKAGE …]
//
// Or it runs a command there, in a copy of a folder, and brings back what the command left in the folder's results:
//
//	go run ./test/vm -folder DIR -do COMMAND [-program NAME …]
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"time"
)

// packages whose code differs between the cgroup versions, or runs on them, or needs a file system with project quotas, or a
// kernel with WireGuard, or with iSCSI.
var packages = []string{"internal/cgroup", "internal/quota", "internal/localvolume", "internal/oci", "internal/cri", "internal/cni/mesh", "internal/kubelet/disks", withSwap}

// withSwap is the last package; its tests find swap in the machine.
const withSwap = "test/v2"

// debian is what has to be installed, with the program that it is recognised by.
var debian = [][2]string{
	{"qemu-system-x86_64", "qemu-system-x86"}, {"/bin/busybox", "busybox-static"}, {"cpio", "cpio"}, {"dpkg-deb", "dpkg"}, {"mkfs.ext4", "e2fsprogs"},
	{"crun", "crun"}, {"runc", "runc"}, {"conmon", "conmon"}, {"nft", "nftables"}, {"ip", "iproute2"},
	{"iscsiadm", "open-iscsi"},
}

// onCgroups are those tests of a large package that the cgroup version can affect: the whole
// package takes over an hour without KVM.
var onCgroups = map[string]string{
	"internal/cni/mesh": "WireGuard",
	"internal/cri": "Resource|Stats|Metrics|Pressure|HugePages|Limits|OOM|Swap|CPURate|Devices|Systemd|" +
		"APodsLife|StopKills|Shared|Monitor|Restart|Reboot|ExecSync|Teardown|UserNamespace$",
}

type options struct {
	run      string // -test.run
	out      string // folder for the kernel, the console's log and what is built
	accel    string // QEMU's
	memory   int    // MiB
	cpus     int    // on two sockets, each a NUMA node
	limit    time.Duration
	packages []string
	command  string   // to run in place of tests
	folder   string   // in a copy of this one
	programs []string // of this machine, for the command
}

// resultsDir is what is brought back of the command's folder.
const resultsDir = "results"

func main() {
	var o options
	flag.StringVar(&o.run, "run", "", "only tests that match; . for all (default: those that run on cgroups)")
	flag.StringVar(&o.out, "out", "out/vm", "folder for what is downloaded and built")
	flag.StringVar(&o.accel, "accel", "tcg", "how QEMU runs the machine; kvm is ten times faster where it works")
	flag.IntVar(&o.memory, "memory", 3072, "of the machine, in MiB")
	flag.IntVar(&o.cpus, "cpus", 4, "of the machine, an even number: half of them, and of its memory, belong to each of two NUMA nodes")
	flag.StringVar(&o.command, "do", "", "command to run in place of tests")
	flag.StringVar(&o.folder, "folder", "", "folder in a copy of which the command runs; what it leaves in "+resultsDir+" there is brought back")
	flag.Func("program", "program of this machine that the command needs; may be repeated", func(name string) error {
		o.programs = append(o.programs, name)
		return nil
	})
	flag.DurationVar(&o.limit, "timeout", 30*time.Minute, "how long the machine may run")
	flag.Parse()
	o.packages = flag.Args()
	if (o.command == "") != (o.folder == "") || o.command != "" && len(o.packages) > 0 || o.cpus < 2 || o.cpus%2 != 0 {
		fmt.Fprintln(os.Stderr, "vm: -do needs -folder, and no packages; -cpus is an even number")
		os.Exit(2)
	}
	if o.command == "" && len(o.packages) == 0 {
		o.packages = packages
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	err := run(ctx, o)
	stop()
	if _, ok := errors.AsType[*missingError](err); ok {
		fmt.Println("SKIP: cgroup v2 in a small machine:", err)
		return
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "vm:", err)
		os.Exit(1)
	}
}

// missingError says what has to be installed or provided first.
type missingError struct{ what string }

func (e *missingError) Error() string { return e.what }

func run(ctx context.Context, o options) error {
	if err := checkInstalled(); err != nil {
		return err
	}
	if err := os.MkdirAll(o.out, 0o755); err != nil {
		return err
	}
	k, err := findKernel(ctx, o.out)
	if err != nil {
		return err
	}
	initrd, err := buildInitramfs(ctx, o, k)
	if err != nil {
		return err
	}
	return boot(ctx, o, k.image, initrd)
}

// job is something that runs in the machine.
type job struct{ name, dir, command string }

// jobs returns what runs, one after another: the packages' tests, or the command.
func (o options) jobs() (all []job) {
	if o.command != "" {
		return []job{{"command", folderAt, o.command}}
	}
	for _, p := range o.packages {
		all = append(all, job{p, "/tests/" + p, fmt.Sprintf("./run.test -test.v -test.short -test.timeout %s -test.run '%s'", o.limit, o.tests(p))})
	}
	return all
}

// tests returns the tests of a package that are to run, as a regular expression.
func (o options) tests(pkg string) string {
	if o.run != "" {
		return o.run
	}
	return onCgroups[pkg]
}

func checkInstalled() error {
	var need []string
	for _, d := range debian {
		if _, err := exec.LookPath(d[0]); err != nil {
			need = append(need, d[1])
		}
	}
	if len(need) > 0 {
		return &missingError{"apt-get install --no-install-recommends " + strings.Join(need, " ")}
	}
	return nil
}

// kernel is one that has been unpacked from its package.
type kernel struct {
	image   string
	root    string // of the unpacked package
	version string
}

// findKernel unpacks the kernel's package, which is in out or is downloaded to it.
func findKernel(ctx context.Context, out string) (kernel, error) {
	pattern := filepath.Join(out, "linux-image-*.deb")
	debs, err := filepath.Glob(pattern)
	if err != nil {
		return kernel{}, err
	}
	if len(debs) == 0 {
		if err := downloadKernel(ctx, out); err != nil {
			return kernel{}, &missingError{fmt.Sprintf("no kernel: %v; put Debian's linux-image-…-cloud-amd64 into %s", err, out)}
		}
		if debs, err = filepath.Glob(pattern); err != nil || len(debs) == 0 {
			return kernel{}, errors.Join(fmt.Errorf("the download left no %s", pattern), err)
		}
	}
	k := kernel{root: filepath.Join(out, "kernel")}
	if err := os.RemoveAll(k.root); err != nil {
		return k, err
	}
	if err := command(ctx, "dpkg-deb", "-x", debs[len(debs)-1], k.root); err != nil {
		return k, err
	}
	images, err := filepath.Glob(filepath.Join(k.root, "boot", "vmlinuz-*"))
	if err != nil || len(images) != 1 {
		return k, fmt.Errorf("%s has kernels %v", debs[len(debs)-1], images)
	}
	k.image = images[0]
	k.version = strings.TrimPrefix(filepath.Base(k.image), "vmlinuz-")
	return k, nil
}

// downloadKernel downloads the package that Debian's name for its newest cloud kernel resolves to.
func downloadKernel(ctx context.Context, out string) error {
	doc, err := exec.CommandContext(ctx, "apt-cache", "depends", "linux-image-cloud-amd64").Output()
	if err != nil {
		return fmt.Errorf("apt-cache depends linux-image-cloud-amd64: %w", err)
	}
	for line := range strings.Lines(string(doc)) {
		if name, ok := strings.CutPrefix(strings.TrimSpace(line), "Depends: linux-image"); ok {
			cmd := exec.CommandContext(ctx, "apt-get", "download", "-qq", "linux-image"+name)
			cmd.Dir = out
			if msg, err := cmd.CombinedOutput(); err != nil {
				return fmt.Errorf("apt-get download: %w: %s", err, msg)
			}
			return nil
		}
	}
	return errors.New("apt knows no linux-image-cloud-amd64")
}

func command(ctx context.Context, name string, args ...string) error {
	if out, err := exec.CommandContext(ctx, name, args...).CombinedOutput(); err != nil {
		return fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, out)
	}
	return nil
}
