package cri

import (
	"strings"
	"testing"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"wherry.dev/internal/cgroup"
	"wherry.dev/internal/cri/crierror"
)

func TestResourcesAndStats(t *testing.T) {
	n := newNode(t)
	p := n.pod()
	cfg := containerConfig("c", "sh", "-c", "head -c 3000000 /dev/zero > /file; while :; do :; done")
	cfg.Linux.Resources = &runtimeapi.LinuxContainerResources{
		CpuShares: 512, CpuQuota: 50000, CpuPeriod: 100000, MemoryLimitInBytes: 64 << 20, OomScoreAdj: 900,
	}
	id := p.start(cfg)
	if got := n.exec(id, "cat", "/proc/1/oom_score_adj"); got != "900\n" {
		t.Errorf("oom_score_adj %q", got)
	}
	if got := n.exec(id, "cat", "/proc/self/oom_score_adj"); got != "900\n" {
		t.Errorf("oom_score_adj of a command %q", got) // it used to be 0 with crun
	}
	limit := func() uint64 {
		st, err := cgroup.ReadStats(n.cgroup(id))
		n.must(err)
		return st.MemoryLimit
	}
	if got := limit(); got != 64<<20 {
		t.Errorf("memory limit %d", got)
	}
	n.must(n.run.UpdateContainerResources(t.Context(), id, &runtimeapi.ContainerResources{
		Linux: &runtimeapi.LinuxContainerResources{MemoryLimitInBytes: 128 << 20, CpuShares: 1024},
	}))
	if got := limit(); got != 128<<20 {
		t.Errorf("memory limit after the update: %d", got)
	}
	res := n.status(id).Resources.Linux
	if res.MemoryLimitInBytes != 128<<20 || res.CpuShares != 1024 || res.CpuQuota != 50000 || res.OomScoreAdj != 900 {
		t.Errorf("status after the update: %v", res)
	}
	n.exec(id, "sh", "-c", "until [ -s /file ] && [ $(stat -c %s /file) = 3000000 ]; do sleep 0.02; done")
	st, err := n.run.ContainerStats(t.Context(), id)
	n.must(err)
	if st.Cpu.UsageCoreNanoSeconds.Value == 0 || st.Memory.WorkingSetBytes.Value == 0 || st.WritableLayer.UsedBytes.Value < 3000000 {
		t.Errorf("stats %v", st)
	}
	if st.Memory.AvailableBytes.GetValue() == 0 || st.Memory.AvailableBytes.GetValue() > 128<<20 {
		t.Errorf("available %v", st.Memory.AvailableBytes)
	}
	pod, err := n.run.PodSandboxStats(t.Context(), p.id)
	n.must(err)
	if pod.Linux.Cpu.UsageCoreNanoSeconds.Value == 0 || pod.Linux.Process.ProcessCount.Value == 0 ||
		pod.Linux.Network.DefaultInterface.GetName() != "eth0" || len(pod.Linux.Containers) != 1 {
		t.Errorf("pod stats %v", pod)
	}
	if all, err := n.run.ListContainerStats(t.Context(), nil); err != nil || len(all) != 1 {
		t.Errorf("all stats %v, %v", all, err)
	}
	info, err := n.img.ImageFsInfo(t.Context())
	n.must(err)
	if info.ImageFilesystems[0].UsedBytes.Value == 0 || info.ContainerFilesystems[0].UsedBytes.Value < 3000000 {
		t.Errorf("file systems %v", info)
	}
	n.must(n.run.StopContainer(t.Context(), id, 0))
	if err := n.run.UpdateContainerResources(t.Context(), id, &runtimeapi.ContainerResources{}); err == nil {
		t.Error("an exited container was updated")
	}
}

func TestImageOfAContainerStays(t *testing.T) {
	n := newNode(t)
	p := n.pod()
	id := p.start(containerConfig("c", "sleep", "1000"))
	img, err := n.img.ImageStatus(t.Context(), &runtimeapi.ImageSpec{Image: "busybox"}, true)
	n.must(err)
	if img.Image.GetId() != n.status(id).ImageId || len(img.Image.RepoTags) != 2 {
		t.Errorf("image %v, container's %s", img.Image, n.status(id).ImageId)
	}
	if err := n.img.RemoveImage(t.Context(), &runtimeapi.ImageSpec{Image: img.Image.Id}); err == nil {
		t.Error("the image of a running container was removed")
	}
	n.restart()
	if err := n.img.RemoveImage(t.Context(), &runtimeapi.ImageSpec{Image: img.Image.Id}); err == nil {
		t.Error("the image of a running container was removed after a restart")
	}
	n.must(n.run.RemovePodSandbox(t.Context(), p.id))
	n.must(n.img.RemoveImage(t.Context(), &runtimeapi.ImageSpec{Image: img.Image.Id}))
	n.must(n.img.RemoveImage(t.Context(), &runtimeapi.ImageSpec{Image: img.Image.Id}))
	if _, err := n.run.CreateContainer(t.Context(), p.id, containerConfig("c", "true"), p.cfg); !crierror.IsNotFound(err) {
		t.Errorf("a container in a removed sandbox: %v", err)
	}
	q := n.pod()
	if _, err := q.run.CreateContainer(t.Context(), q.id, containerConfig("c", "true"), q.cfg); !crierror.IsNotFound(err) || !strings.Contains(err.Error(), "not present") {
		t.Errorf("a container of a removed image: %v", err)
	}
}

func TestRetriesJoinAndFindWhatIsThere(t *testing.T) {
	n := newNode(t)
	cfg := n.podConfig()
	ids := make(chan string, 8)
	for range cap(ids) {
		go func() {
			id, err := n.run.RunPodSandbox(t.Context(), cfg, "")
			if err != nil {
				t.Error(err)
			}
			ids <- id
		}()
	}
	first := <-ids
	for range cap(ids) - 1 {
		if id := <-ids; id != first {
			t.Errorf("two sandboxes for one pod: %s, %s", first, id)
		}
	}
	p := &pod{n, first, cfg}
	c := containerConfig("c", "sleep", "1000")
	id := p.create(c)
	if again := p.create(c); again != id {
		t.Errorf("two containers for one attempt: %s, %s", id, again)
	}
	n.must(n.run.StartContainer(t.Context(), id))
	if _, err := n.run.CreateContainer(t.Context(), p.id, c, cfg); err == nil || !strings.Contains(err.Error(), "already exists") {
		t.Errorf("the same attempt of a started container: %v", err)
	}
	if err := n.run.StartContainer(t.Context(), id); err == nil {
		t.Error("a running container was started again")
	}
}

func TestConfigErrorsAreClear(t *testing.T) {
	base := Config{Root: t.TempDir(), State: t.TempDir(), InstanceID: "x"}
	t.Setenv("PATH", t.TempDir())
	if _, err := base.withDefaults(); err == nil || !strings.Contains(err.Error(), "conmon and crun not found in PATH; install") {
		t.Errorf("nothing installed: %v", err)
	}
	for want, change := range map[string]func(*Config){
		"Root and State":  func(c *Config) { c.Root = "" },
		"instance ID":     func(c *Config) { c.InstanceID = "Not Good" },
		"runtime handler": func(c *Config) { c.Runtimes = map[string]RuntimeConfig{"kata": {Path: "kata-runtime"}} },
		"must be crun or runc": func(c *Config) {
			c.Runtimes = map[string]RuntimeConfig{"kata": {Path: "/bin/sh", Type: "io.containerd.kata.v2"}}
		},
		"as in a RuntimeClass": func(c *Config) { c.Runtimes = map[string]RuntimeConfig{"Not_A-Label": {Path: "/bin/sh"}} },
		"want NAME=SOFT:HARD":  func(c *Config) { c.DefaultUlimits = []string{"nofile"} },
		"default runtime ":     func(c *Config) { c.Runtimes, c.DefaultRuntime = map[string]RuntimeConfig{"x": {Path: "/bin/sh"}}, "y" },
	} {
		c := base
		c.Conmon = "/bin/true"
		change(&c)
		if _, err := c.withDefaults(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", want, err)
		}
	}
}

func TestRuncRunsPodsToo(t *testing.T) {
	n := newNode(t, func(c *Config) { c.DefaultRuntime = "runc" })
	p := n.pod()
	cfg := containerConfig("c", "sh", "-c", "echo $$; grep Seccomp: /proc/self/status | cut -f2; sleep 1000")
	cfg.Linux.Resources.MemoryLimitInBytes = 64 << 20
	id := p.start(cfg)
	if got := n.exec(id, "echo", "hi"); got != "hi\n" {
		t.Errorf("exec %q", got)
	}
	if st, err := cgroup.ReadStats(n.cgroup(id)); err != nil || st.MemoryLimit != 64<<20 {
		t.Errorf("limit %+v, %v", st, err)
	}
	n.restart()
	n.must(n.run.StopContainer(t.Context(), id, 0))
	if out := logText(t, n.status(id).LogPath, "stdout"); out != "1\n2\n" {
		t.Errorf("log %q", out)
	}
	n.must(n.run.RemovePodSandbox(t.Context(), p.id))
}

func TestTeardownTakesRunningPods(t *testing.T) {
	n := newNode(t) // the end of the test tears everything down and looks for leaks
	for range 3 {
		n.pod(sharedPID).start(inSharedPID(containerConfig("c", "sleep", "1000")))
	}
}
