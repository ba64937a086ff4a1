package e2e

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	imagev1 "github.com/google/go-containerregistry/pkg/v1"

	"wherry.dev/test/images"
)

// attackTime returns how long each attack of `make attack` lasts; a short form of a few seconds is
// part of all tests.
func attackTime(t testing.TB) time.Duration {
	t.Helper()
	d, err := time.ParseDuration(cmp.Or(os.Getenv("ATTACK_TIME"), "3s"))
	if err != nil {
		t.Fatalf("ATTACK_TIME: %v", err)
	}
	return d
}

// attack is what one tenant tries.
type attack struct {
	pods []*v1.Pod
	// wait, if set, is the end that the pods must reach.
	wait func(*v1.Pod) bool
	what string // of wait, in words
}

// TestAttack runs hostile pods on a node with healthy ones next to them. Whatever they do, the
// healthy ones stay unharmed, the API answers, and nothing on the host changes.
func TestAttack(t *testing.T) {
	needsOwnRuntime(t)
	c := newCluster(t)
	c.smallDisk("1g,nr_inodes=60000")
	c.addImage("busybox.tar", images.SaveBusybox)
	c.addImage("hostile.tar", saveHostile)
	canaries := makeCanaries(t)
	c.flags = append(c.flags, "--pod-max-pids", "256")
	c.up()
	healthy := c.createHealthy()
	pid, before := c.pid(), hostState(t, canaries)
	watch := c.watchAPI()
	all := attacks(canaries)
	maps.Copy(all, imageAttacks(t, canaries))
	for _, name := range slices.Sorted(maps.Keys(all)) {
		t.Run(name, func(t *testing.T) {
			c := *c
			c.t = t
			room := c.room()
			c.run1(all[name])
			if now := c.pid(); now != pid {
				t.Fatalf("the daemon was %d and is %d", pid, now)
			}
			c.unharmed(healthy)
			c.awaitRoom(room)
		})
	}
	worst, failed := watch()
	t.Logf("the API's slowest answer took %v", worst.Round(time.Millisecond))
	for _, err := range failed {
		t.Errorf("the API did not answer: %v", err)
	}
	after := hostState(t, canaries)
	for what := range before {
		if after[what] != before[what] {
			t.Errorf("%s of the host changed, lines before (-) and now (+):\n%s", what, changed(before[what], after[what]))
		}
	}
}

// changed lists the lines that only one of two texts has.
func changed(before, now string) string {
	was, is := strings.Split(before, "\n"), strings.Split(now, "\n")
	var lines []string
	for _, l := range was {
		if !slices.Contains(is, l) {
			lines = append(lines, "- "+l)
		}
	}
	for _, l := range is {
		if !slices.Contains(was, l) {
			lines = append(lines, "+ "+l)
		}
	}
	return strings.Join(lines, "\n")
}

// run1 lets the tenant try, and removes its pods.
func (c *cluster) run1(a attack) {
	c.t.Helper()
	for _, p := range a.pods {
		p.Spec.TerminationGracePeriodSeconds = new(int64)
		c.create(p)
	}
	if a.wait == nil {
		time.Sleep(attackTime(c.t)) // as long as it lasts
	}
	for _, p := range a.pods {
		if a.wait != nil {
			c.await(p.Name, a.what, a.wait)
		}
	}
	for _, p := range a.pods {
		if log, err := c.try("kubectl", "logs", p.Name, "--all-containers", "--tail=200"); err == nil && strings.Contains(log, "ESCAPED") {
			c.t.Errorf("%s: %s", p.Name, log)
		}
	}
	for _, p := range a.pods {
		c.delete(p.Name)
	}
}

// createHealthy creates the neighbours: one that is probed, one with a volume, one that is
// guaranteed its resources.
func (c *cluster) createHealthy() []*v1.Pod {
	c.t.Helper()
	pods := []*v1.Pod{
		busybox("probed", func(p *v1.Pod) {
			main := &p.Spec.Containers[0]
			main.Command = []string{"sh", "-c", "mkdir /www && echo ok > /www/index.html && httpd -f -p 8080 -h /www"}
			main.LivenessProbe = &v1.Probe{
				ProbeHandler:  v1.ProbeHandler{HTTPGet: &v1.HTTPGetAction{Path: "/", Port: intstr.FromInt32(8080)}},
				PeriodSeconds: 1, TimeoutSeconds: 10, FailureThreshold: 5,
			}
			main.ReadinessProbe = &v1.Probe{ProbeHandler: main.LivenessProbe.ProbeHandler, PeriodSeconds: 1, TimeoutSeconds: 10}
		}),
		keeps(),
		busybox("guaranteed", func(p *v1.Pod) {
			want := v1.ResourceList{v1.ResourceCPU: resource.MustParse("50m"), v1.ResourceMemory: resource.MustParse("32Mi")}
			p.Spec.Containers[0].Resources = v1.ResourceRequirements{Requests: want, Limits: want}
		}),
	}
	out := make([]*v1.Pod, 0, len(pods))
	for _, p := range pods {
		c.create(p)
	}
	for _, p := range pods {
		out = append(out, c.await(p.Name, "ready", ready))
	}
	return out
}

// keeps returns a pod that has something on the disk, though no more than it requested: of the
// neighbours it is the first to be evicted if what fills the disk belongs to no pod.
func keeps() *v1.Pod {
	p := onDisk("keeps", "head -c 20000000 /dev/zero > /data/much; echo mine > /data/file; "+loop)
	p.Spec.Containers[0].Resources.Requests = v1.ResourceList{v1.ResourceEphemeralStorage: resource.MustParse("64Mi")}
	return p
}

// unharmed waits until the neighbours are ready, and checks that they are the same containers as
// before and still have what they wrote.
func (c *cluster) unharmed(before []*v1.Pod) {
	c.t.Helper()
	for _, was := range before {
		now := c.await(was.Name, "ready", ready)
		a, b := was.Status.ContainerStatuses[0], now.Status.ContainerStatuses[0]
		if was.UID != now.UID || a.ContainerID != b.ContainerID || b.RestartCount != 0 {
			c.t.Errorf("%s was %s, is %s after %d restarts: %s", was.Name, a.ContainerID, b.ContainerID, b.RestartCount, describe(now))
		}
	}
	if got := c.exec("keeps", "cat", "/data/file"); strings.TrimSpace(got) != "mine" {
		c.t.Errorf("the volume has %q", got)
	}
}

// watchAPI queries the API server over and over, until end is called.
func (c *cluster) watchAPI() (end func() (worst time.Duration, failed []error)) {
	ctx, stop := context.WithCancel(c.t.Context())
	var wg sync.WaitGroup
	var slowest time.Duration
	var errs []error
	wg.Go(func() {
		for ctx.Err() == nil {
			began := time.Now()
			one, cancel := context.WithTimeout(ctx, patience)
			_, err := c.client.CoreV1().Pods(metav1.NamespaceDefault).List(one, metav1.ListOptions{})
			cancel()
			if err != nil && ctx.Err() == nil && len(errs) < 10 {
				errs = append(errs, err)
			}
			slowest = max(slowest, time.Since(began))
			select {
			case <-ctx.Done():
			case <-time.After(200 * time.Millisecond):
			}
		}
	})
	return func() (time.Duration, []error) {
		stop()
		wg.Wait()
		return slowest, errs
	}
}

// makeCanaries makes files of root's that no pod has any business with.
func makeCanaries(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for i := range 20 {
		if err := os.WriteFile(filepath.Join(dir, fmt.Sprint("canary", i)), []byte("root's own\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(filepath.Join(dir, "folder"), 0o700); err != nil {
		t.Fatal(err)
	}
	return dir
}

// ofTests matches the links of this test and of others next to it, and the routes over them:
// bridges, the pods' ends, what the kernel makes when it loads a module for a test, and a route
// whose link disappeared while it was read.
var ofTests = regexp.MustCompile(`wh|veth|\bifb\d|\bdev if\d`)

// hostState returns what no pod may change: files, kernel settings, mounts, devices.
func hostState(t *testing.T, canaries string) map[string]string {
	t.Helper()
	out := map[string]string{}
	for _, dir := range []string{canaries, "/etc", "/dev", "/root/.ssh"} {
		out["files in "+dir] = treeState(t, dir)
	}
	for _, file := range []string{
		"kernel/core_pattern", "kernel/modprobe", "kernel/panic_on_oom", "kernel/sysrq", "kernel/hostname", "kernel/domainname", "kernel/randomize_va_space",
		"vm/overcommit_memory", "vm/panic_on_oom", "fs/file-max", "fs/suid_dumpable", "net/ipv4/tcp_syncookies", "net/ipv4/conf/all/rp_filter",
	} {
		data, err := os.ReadFile("/proc/sys/" + file)
		if err != nil && !errors.Is(err, fs.ErrNotExist) { // not every kernel has all of them
			t.Fatal(err)
		}
		out["sysctl "+file] = string(data)
	}
	for name, command := range map[string][]string{"links": {"ip", "-o", "link"}, "routes": {"ip", "route"}} {
		data, err := exec.Command(command[0], command[1:]...).Output()
		if err != nil {
			t.Fatal(err)
		}
		var lines []string
		for l := range strings.SplitSeq(string(data), "\n") {
			if !ofTests.MatchString(l) {
				lines = append(lines, l)
			}
		}
		out[name] = strings.Join(lines, "\n")
	}
	return out
}

// treeState returns mode, owner, device and content of each file.
func treeState(t *testing.T, dir string) string {
	t.Helper()
	var b strings.Builder
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		if strings.HasPrefix(path, "/dev/") && (strings.HasPrefix(path, "/dev/pts") || strings.HasPrefix(path, "/dev/shm") || strings.HasPrefix(path, "/dev/loop")) {
			return nil // terminals come and go
		}
		info, err := e.Info()
		if err != nil {
			return nil //nolint:nilerr // it disappeared meanwhile
		}
		st, ok := info.Sys().(*syscall.Stat_t)
		if !ok {
			return fmt.Errorf("no stat of %s", path)
		}
		sum := ""
		if info.Mode().IsRegular() && info.Size() < 1<<20 {
			data, err := os.ReadFile(path)
			if errors.Is(err, fs.ErrNotExist) {
				return nil // it disappeared meanwhile
			}
			if err != nil {
				return err
			}
			sum = fmt.Sprintf("%x", sha256.Sum256(data))[:12]
		}
		fmt.Fprintf(&b, "%s %s %d:%d %d %s\n", path, info.Mode(), st.Uid, st.Gid, st.Rdev, sum)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// saveHostile makes an image whose root leads elsewhere: mount points of the runtime, and files
// that it reads, are links to the host's.
func saveHostile(path string) error {
	root, err := images.Busybox()
	if err != nil {
		return err
	}
	hostile := images.Root{
		"etc/passwd":      {Link: "/../../../../../../etc/shadow"},
		"etc/group":       {Link: "../../../../../../../etc/shadow"},
		"etc/resolv.conf": {Link: "../../../../../../../../tmp/wherry-attack-resolv"},
		"etc/hosts":       {Link: "/proc/self/root/../../etc/hosts"},
		"data":            {Link: "../../../../../../../../../tmp"},
		"work":            {Link: "/../../../../../../../../root"},
		"dev/termination": {Link: "../../../../../../../../../../tmp/wherry-attack-last-words"},
	}
	img, err := images.New(imagev1.Config{Cmd: []string{"/bin/sh"}, WorkingDir: "/work/made"}, root, hostile)
	if err != nil {
		return err
	}
	return images.Save(path, img, "docker.io/library/hostile:1")
}

// tries returns a script that runs each line and names those that succeeded but must not.
func tries(lines ...string) string {
	var b strings.Builder
	for _, l := range lines {
		fmt.Fprintf(&b, "if (%s) >/dev/null 2>&1; then echo 'ESCAPED: %s'; fi\n", l, strings.ReplaceAll(l, "'", `"`))
	}
	return b.String() + "echo tried\n"
}

func onHostile(name, text string) *v1.Pod {
	p := onDisk(name, text)
	p.Spec.Containers[0].Image = "docker.io/library/hostile:1"
	return p
}

func attacks(canaries string) map[string]attack {
	ended := func(p *v1.Pod) bool {
		return p != nil && (p.Status.Phase == v1.PodSucceeded || p.Status.Phase == v1.PodFailed)
	}
	once := func(p *v1.Pod) *v1.Pod {
		p.Spec.RestartPolicy = v1.RestartPolicyNever
		return p
	}
	return map[string]attack{
		"devices and mounts": {pods: []*v1.Pod{once(busybox("devices", func(p *v1.Pod) {
			p.Spec.Containers[0].Command = []string{"sh", "-c", tries(
				"mknod /tmp/sda b 8 0 && head -c 1 /tmp/sda", "mknod /tmp/vda b 254 0 && head -c 1 /tmp/vda", "mknod /tmp/mem c 1 1 && head -c 1 /tmp/mem", "head -c 1 /dev/mem",
				"mknod /tmp/kmsg c 1 11 && echo x > /tmp/kmsg", "mount -t proc proc /mnt", "mount -t tmpfs tmpfs /mnt", "mount -o remount,rw /sys", "mount -o remount,rw /proc/sys",
				"mount --bind / /mnt", "umount /proc/sys", "umount /etc/hosts", "mount -t cgroup -o memory cgroup /mnt", "mount -t sysfs sysfs /mnt",
			)}
		}))}, wait: ended, what: "ended"},
		"kernel settings": {pods: []*v1.Pod{once(busybox("settings", func(p *v1.Pod) {
			p.Spec.Containers[0].Command = []string{"sh", "-c", tries(
				"echo '|/tmp/x' > /proc/sys/kernel/core_pattern", "echo c > /proc/sysrq-trigger", "echo 1 > /proc/sys/vm/panic_on_oom", "echo x > /proc/sys/kernel/hostname",
				"echo 0 > /proc/sys/kernel/randomize_va_space", "echo /tmp/x > /sys/kernel/uevent_helper", "hostname evil", "date -s 2000-01-01; [ $(date +%Y) = 2000 ]",
				"find /sys/fs/cgroup -name release_agent -exec sh -c 'echo /tmp/x > {}' ';' -quit | grep -q . ", "insmod /bin/busybox", "kill -9 -1 && false",
				"echo -1000 > /proc/self/oom_score_adj", "ip link add evil type dummy", "ip link set eth0 down", "swapoff -a", "reboot -f", "dmesg", "renice -20 1", "unshare -m true", "unshare -U -m true",
				"cat /proc/kcore | head -c 1 | grep -q .", "cat /proc/keys | grep -q .", "cat /proc/timer_list | grep -q .", "ls /sys/firmware/* | grep -q .",
			)}
		}))}, wait: ended, what: "ended"},
		"hostile image": {pods: []*v1.Pod{onHostile("hostile", tries(
			"test -s /etc/passwd", "test -s /etc/group", "test -e /data/wherry-e2e*", "test -e /work/made/../.ssh",
		)+loop), busybox("as-somebody", func(p *v1.Pod) {
			p.Spec.Containers[0].Image = "docker.io/library/hostile:1"
			p.Spec.Containers[0].TerminationMessagePath = "/dev/termination"
			p.Spec.SecurityContext = &v1.PodSecurityContext{RunAsUser: new(int64(1000)), FSGroup: new(int64(2000))}
		})}},
		"subPath swapped for links": {pods: []*v1.Pod{busybox("swapper", func(p *v1.Pod) {
			p.Spec.Volumes = []v1.Volume{{Name: "v", VolumeSource: v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{}}}}
			whole := v1.VolumeMount{Name: "v", MountPath: "/v"}
			swap := p.Spec.Containers[0]
			swap.Name, swap.VolumeMounts = "swap", []v1.VolumeMount{whole}
			swap.Command = []string{"sh", "-c", "while true; do for i in 0 1 2 3 4 5 6 7; do rm -rf /v/sub$i; ln -s " + canaries + "/canary$i /v/sub$i; rm -f /v/sub$i; ln -s " + canaries + "/folder /v/sub$i; done; done"}
			p.Spec.Containers = []v1.Container{swap}
			for i := range 8 {
				victim := v1.Container{Name: fmt.Sprint("sub", i), Image: swap.Image, Command: []string{"sh", "-c", "test -e /s/canary0 && echo ESCAPED; exit 1"}}
				victim.VolumeMounts = []v1.VolumeMount{{Name: "v", MountPath: "/s", SubPath: fmt.Sprint("sub", i)}}
				p.Spec.Containers = append(p.Spec.Containers, victim)
			}
			p.Spec.SecurityContext = &v1.PodSecurityContext{FSGroup: new(int64(2000))}
		})}},
		"last words that are links": {pods: []*v1.Pod{busybox("words", func(p *v1.Pod) {
			p.Spec.Containers[0].Command = []string{"sh", "-c", "rm -f /dev/termination-log; ln -s /etc/shadow /dev/termination-log; cat /dev/zero > /dev/termination-log; exit 1"}
		})}},
		"fork bomb": {pods: []*v1.Pod{busybox("bomb", func(p *v1.Pod) {
			p.Spec.Containers[0].Command = []string{"sh", "-c", "f() { f | f & }; while true; do f; sleep 0.1; done"}
		})}},
		"memory": {pods: []*v1.Pod{busybox("memory", func(p *v1.Pod) {
			p.Spec.Containers[0].Command = []string{"sh", "-c", "while true; do tail /dev/zero; done"}
			p.Spec.Containers[0].Resources.Limits = v1.ResourceList{v1.ResourceMemory: resource.MustParse("64Mi")}
		})}},
		"flood of a log":        {pods: []*v1.Pod{onDisk("logger", "while true; do yes 'flood flood flood flood'; done")}},
		"flood of a volume":     {pods: []*v1.Pod{onDisk("disk", "while true; do cat /dev/zero >> /data/hog; done")}, wait: evicted, what: "evicted"},
		"flood of a layer":      {pods: []*v1.Pod{onDisk("layer", "while true; do cat /dev/zero >> /hog; done")}, wait: evicted, what: "evicted"},
		"flood of last words":   {pods: []*v1.Pod{onDisk("words", "while true; do cat /dev/zero >> /dev/termination-log; done")}, wait: evicted, what: "evicted"},
		"flood of etc":          {pods: []*v1.Pod{onDisk("hosts", "while true; do cat /dev/zero >> /etc/hosts; done")}, wait: evicted, what: "evicted"},
		"flood of shared files": {pods: []*v1.Pod{onDisk("shared", "while true; do cat /dev/zero >> /etc/resolv.conf; cat /dev/zero >> /etc/hostname; cat /dev/zero >> /dev/shm/x; done")}},
		"flood of inodes": {pods: []*v1.Pod{onDisk("inodes", "i=0; while mkdir /data/$i; do j=0; while [ $j -lt 5000 ]; do : > /data/$i/$j || break; j=$((j+1)); done; i=$((i+1)); done; "+loop)},
			wait: evicted, what: "evicted"},
		"flood of connections": {pods: []*v1.Pod{onDisk("connects", "i=0; while [ $i -lt 200 ]; do (sleep 1000 | nc $KUBERNETES_SERVICE_HOST 443) & i=$((i+1)); done; wait")}},
		"flood of requests":    {pods: []*v1.Pod{onDisk("asks", "while true; do for i in 1 2 3 4 5 6 7 8; do wget -q -O- --no-check-certificate https://$KUBERNETES_SERVICE_HOST/api/v1/pods & done; wait; done")}},
		"restarts":             {pods: []*v1.Pod{busybox("restarts", func(p *v1.Pod) { p.Spec.Containers[0].Command = []string{"false"} })}},
	}
}
