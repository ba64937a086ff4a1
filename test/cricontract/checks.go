package cricontract

import (
	"context"
	"errors"
	"slices"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	utilexec "k8s.io/utils/exec"
)

// Checks are all checks; the last one removes the image.
var Checks = []Check{
	{"the runtime and its network are ready", ready},
	{"a sandbox that was run again is the same", sandboxAgain},
	{"a sandbox has an address and tells of its containers", sandboxStatus},
	{"a stopped sandbox has nothing that runs", sandboxStop},
	{"a removed sandbox is gone, with its containers", sandboxRemove},
	{"a container that was created again is the same", createAgain},
	{"a container remembers what it was made from", createStatus},
	{"no container is created without a sandbox that is ready", createNowhere},
	{"a container that runs is not started again", startAgain},
	{"a container that has ended is not started", startEnded},
	{"an exit has code, reason and times", exitStatus},
	{"a stop lets a container end by itself", stopObeys},
	{"a stop kills what ignores it", stopKills},
	{"a stop without time kills at once", stopNow},
	{"a second stop with less time wins", stopShorter},
	{"a stop whose caller gives up leaves the container", stopGivenUp},
	{"a stop of what does not run is no error", stopEnded},
	{"a container that never ran can be removed", removeCreated},
	{"a container that runs is removed", removeRunning},
	{"a newer attempt lives beside an ended one", attempts},
	{"lists can be filtered", lists},
	{"events tell of each step", eventsTell},
	{"a command in a container has output and code", execSync},
	{"an image that is there has an ID, one that is not is no error", imageStatus},
	{"an image that nobody has cannot be pulled", pullMissing},
	{"a removed image is gone", imageRemove},
}

func ready(c *check) {
	v, err := c.Runtime.Version(c.ctx, "v1")
	c.must(err)
	if v.RuntimeName == "" || v.RuntimeApiVersion != "v1" {
		c.t.Errorf("version: %v", v)
	}
	st, err := c.Runtime.Status(c.ctx, false)
	c.must(err)
	for _, want := range []string{runtimeapi.RuntimeReady, runtimeapi.NetworkReady} {
		if !slices.ContainsFunc(st.Status.Conditions, func(o *runtimeapi.RuntimeCondition) bool { return o.Type == want && o.Status }) {
			c.t.Errorf("%s is not true: %v", want, st.Status.Conditions)
		}
	}
	if !slices.ContainsFunc(st.RuntimeHandlers, func(h *runtimeapi.RuntimeHandler) bool { return h.Name == "" }) {
		c.t.Errorf("no default handler: %v", st.RuntimeHandlers)
	}
}

func sandboxAgain(c *check) {
	id, cfg := c.pod()
	again, err := c.Runtime.RunPodSandbox(c.ctx, cfg, "")
	if err != nil || again != id {
		c.t.Errorf("%s, then %s: %v", id, again, err)
	}
}

func sandboxStatus(c *check) {
	id, cfg := c.pod()
	container := c.create(id, cfg, c.config("c", Obeys, 0))
	resp, err := c.Runtime.PodSandboxStatus(c.ctx, id, false)
	c.must(err)
	st := resp.Status
	if st.Id != id || st.State != runtimeapi.PodSandboxState_SANDBOX_READY || st.GetNetwork().GetIp() == "" || st.CreatedAt == 0 ||
		st.GetMetadata().GetUid() != cfg.Metadata.Uid || st.GetMetadata().GetName() != cfg.Metadata.Name {
		c.t.Errorf("status: %v", st)
	}
	if resp.Timestamp == 0 || len(resp.ContainersStatuses) != 1 || resp.ContainersStatuses[0].Id != container {
		c.t.Errorf("containers: %v at %d", resp.ContainersStatuses, resp.Timestamp)
	}
	_, err = c.Runtime.PodSandboxStatus(c.ctx, "none", false)
	c.notFound("status of no sandbox", err)
}

func sandboxStop(c *check) {
	sandbox, id := c.start(Ignores)
	c.must(c.Runtime.StopPodSandbox(c.ctx, sandbox))
	if st := c.exited(id); st.ExitCode != 137 {
		c.t.Errorf("exit code %d", st.ExitCode)
	}
	resp, err := c.Runtime.PodSandboxStatus(c.ctx, sandbox, false)
	if err != nil || resp.Status.State != runtimeapi.PodSandboxState_SANDBOX_NOTREADY {
		c.t.Errorf("status: %v %v", resp, err)
	}
	c.must(c.Runtime.StopPodSandbox(c.ctx, sandbox))
	c.must(c.Runtime.StopPodSandbox(c.ctx, "none"))
}

func sandboxRemove(c *check) {
	sandbox, id := c.start(Obeys)
	c.must(c.Runtime.StopPodSandbox(c.ctx, sandbox))
	c.must(c.Runtime.RemovePodSandbox(c.ctx, sandbox))
	_, err := c.Runtime.PodSandboxStatus(c.ctx, sandbox, false)
	c.notFound("status of a removed sandbox", err)
	_, err = c.Runtime.ContainerStatus(c.ctx, id, false)
	c.notFound("status of its container", err)
	c.must(c.Runtime.RemovePodSandbox(c.ctx, sandbox))
}

func createAgain(c *check) {
	sandbox, pod := c.pod()
	cfg := c.config("c", Obeys, 0)
	id := c.create(sandbox, pod, cfg)
	if again := c.create(sandbox, pod, cfg); again != id {
		c.t.Errorf("%s, then %s", id, again)
	}
}

func createStatus(c *check) {
	sandbox, pod := c.pod()
	cfg := c.config("c", Obeys, 4)
	st := c.status(c.create(sandbox, pod, cfg))
	if st.State != runtimeapi.ContainerState_CONTAINER_CREATED || st.CreatedAt == 0 || st.StartedAt != 0 || st.FinishedAt != 0 {
		c.t.Errorf("state %v, times %d %d %d", st.State, st.CreatedAt, st.StartedAt, st.FinishedAt)
	}
	if st.Metadata.Name != "c" || st.Metadata.Attempt != 4 || st.Labels["name"] != "c" || st.Annotations["note"] != "of c" {
		c.t.Errorf("metadata %v, labels %v, annotations %v", st.Metadata, st.Labels, st.Annotations)
	}
	if st.ImageRef == "" || st.GetImage().GetUserSpecifiedImage() != c.Image || st.LogPath != pod.LogDirectory+"/c/4.log" {
		c.t.Errorf("image %v %q, log %q", st.Image, st.ImageRef, st.LogPath)
	}
}

func createNowhere(c *check) {
	sandbox, pod := c.pod()
	c.must(c.Runtime.StopPodSandbox(c.ctx, sandbox))
	for _, in := range []string{"none", sandbox} {
		if id, err := c.Runtime.CreateContainer(c.ctx, in, c.config("c", Obeys, 0), pod); err == nil {
			c.t.Errorf("created %s in %s", id, in)
		}
	}
}

func startAgain(c *check) {
	_, id := c.start(Obeys)
	before := c.status(id)
	if err := c.Runtime.StartContainer(c.ctx, id); err == nil {
		c.t.Error("a container that runs was started again")
	}
	if st := c.status(id); st.State != runtimeapi.ContainerState_CONTAINER_RUNNING || st.StartedAt != before.StartedAt || st.StartedAt < st.CreatedAt {
		c.t.Errorf("%v, started at %d, then %d", st.State, before.StartedAt, st.StartedAt)
	}
}

func startEnded(c *check) {
	_, id := c.start(Ends)
	c.exited(id)
	if err := c.Runtime.StartContainer(c.ctx, id); err == nil {
		c.t.Error("a container that has ended was started")
	}
	c.notFound("start of nothing", c.Runtime.StartContainer(c.ctx, "none"))
}

func exitStatus(c *check) {
	for script, want := range map[string]struct {
		code   int32
		reason string
	}{Ends: {0, "Completed"}, Fails: {3, "Error"}} {
		_, id := c.start(script)
		st := c.exited(id)
		if st.ExitCode != want.code || st.Reason != want.reason || st.StartedAt == 0 || st.FinishedAt < st.StartedAt {
			c.t.Errorf("%q: %v", script, st)
		}
	}
}

func stopObeys(c *check) {
	_, id := c.start(Obeys)
	c.must(c.Runtime.StopContainer(c.ctx, id, 20))
	if st := c.status(id); st.State != runtimeapi.ContainerState_CONTAINER_EXITED || st.ExitCode != 7 {
		c.t.Errorf("%v %d", st.State, st.ExitCode)
	}
}

func stopKills(c *check) {
	_, id := c.start(Ignores)
	c.must(c.Runtime.StopContainer(c.ctx, id, 1))
	if st := c.status(id); st.State != runtimeapi.ContainerState_CONTAINER_EXITED || st.ExitCode != 137 || st.Reason != "Error" {
		c.t.Errorf("%v %d %s", st.State, st.ExitCode, st.Reason)
	}
}

func stopNow(c *check) {
	_, id := c.start(Obeys)
	c.must(c.Runtime.StopContainer(c.ctx, id, 0))
	if st := c.status(id); st.State != runtimeapi.ContainerState_CONTAINER_EXITED || st.ExitCode != 137 {
		c.t.Errorf("%v %d", st.State, st.ExitCode)
	}
}

func stopShorter(c *check) {
	_, id := c.start(Ignores)
	first := make(chan error, 1)
	go func() { first <- c.Runtime.StopContainer(c.ctx, id, 3600) }()
	c.must(c.Runtime.StopContainer(c.ctx, id, 1))
	if err := <-first; err != nil {
		c.t.Errorf("first stop: %v", err)
	}
	if st := c.status(id); st.ExitCode != 137 {
		c.t.Errorf("%d", st.ExitCode)
	}
}

func stopGivenUp(c *check) {
	_, id := c.start(Ignores)
	ctx, cancel := context.WithTimeout(c.ctx, 100*time.Millisecond)
	defer cancel()
	if err := c.Runtime.StopContainer(ctx, id, 3600); err == nil {
		c.t.Error("a stop that was given up succeeded")
	}
	if st := c.status(id); st.State != runtimeapi.ContainerState_CONTAINER_RUNNING {
		c.t.Errorf("%v", st.State)
	}
}

func stopEnded(c *check) {
	_, id := c.start(Ends)
	c.exited(id)
	c.must(c.Runtime.StopContainer(c.ctx, id, 1))
	c.must(c.Runtime.StopContainer(c.ctx, "none", 1))
}

func removeCreated(c *check) {
	sandbox, pod := c.pod()
	id := c.create(sandbox, pod, c.config("c", Obeys, 0))
	c.must(c.Runtime.StopContainer(c.ctx, id, 1)) // no matter what that does to it
	c.must(c.Runtime.RemoveContainer(c.ctx, id))
	_, err := c.Runtime.ContainerStatus(c.ctx, id, false)
	c.notFound("status of a removed container", err)
}

func removeRunning(c *check) {
	sandbox, id := c.start(Ignores)
	c.must(c.Runtime.RemoveContainer(c.ctx, id))
	_, err := c.Runtime.ContainerStatus(c.ctx, id, false)
	c.notFound("status of a removed container", err)
	c.must(c.Runtime.RemoveContainer(c.ctx, id))
	if resp, err := c.Runtime.PodSandboxStatus(c.ctx, sandbox, false); err != nil || len(resp.ContainersStatuses) != 0 {
		c.t.Errorf("%v %v", resp, err)
	}
}

func attempts(c *check) {
	sandbox, pod := c.pod()
	old := c.create(sandbox, pod, c.config("c", Ends, 0))
	c.must(c.Runtime.StartContainer(c.ctx, old))
	c.exited(old)
	next := c.create(sandbox, pod, c.config("c", Obeys, 1))
	c.must(c.Runtime.StartContainer(c.ctx, next))
	if next == old || c.status(old).ExitCode != 0 || c.status(next).State != runtimeapi.ContainerState_CONTAINER_RUNNING {
		c.t.Errorf("%s %v, %s %v", old, c.status(old), next, c.status(next))
	}
}

func lists(c *check) {
	sandbox, pod := c.pod()
	made := c.create(sandbox, pod, c.config("made", Obeys, 0))
	runs := c.create(sandbox, pod, c.config("runs", Obeys, 0))
	c.must(c.Runtime.StartContainer(c.ctx, runs))
	running := &runtimeapi.ContainerStateValue{State: runtimeapi.ContainerState_CONTAINER_RUNNING}
	for _, tc := range []struct {
		filter *runtimeapi.ContainerFilter
		want   []string
	}{
		{&runtimeapi.ContainerFilter{PodSandboxId: sandbox}, []string{made, runs}},
		{&runtimeapi.ContainerFilter{PodSandboxId: sandbox, State: running}, []string{runs}},
		{&runtimeapi.ContainerFilter{Id: made}, []string{made}},
		{&runtimeapi.ContainerFilter{PodSandboxId: sandbox, LabelSelector: map[string]string{"name": "runs"}}, []string{runs}},
		{&runtimeapi.ContainerFilter{PodSandboxId: "none"}, nil},
	} {
		list, err := c.Runtime.ListContainers(c.ctx, tc.filter)
		c.must(err)
		var got []string
		for _, o := range list {
			got = append(got, o.Id)
		}
		if slices.Sort(got); !slices.Equal(got, slices.Sorted(slices.Values(tc.want))) {
			c.t.Errorf("%v: %v, want %v", tc.filter, got, tc.want)
		}
	}
	for _, f := range []*runtimeapi.PodSandboxFilter{{Id: sandbox}, {LabelSelector: pod.Labels}} {
		boxes, err := c.Runtime.ListPodSandbox(c.ctx, f)
		if err != nil || len(boxes) != 1 || boxes[0].Id != sandbox || boxes[0].State != runtimeapi.PodSandboxState_SANDBOX_READY {
			c.t.Errorf("%v: %v %v", f, boxes, err)
		}
	}
}

func eventsTell(c *check) {
	_, id := c.start(Obeys)
	c.until("created", c.told(id, runtimeapi.ContainerEventType_CONTAINER_CREATED_EVENT))
	c.until("started", c.told(id, runtimeapi.ContainerEventType_CONTAINER_STARTED_EVENT))
	c.must(c.Runtime.StopContainer(c.ctx, id, 5))
	c.until("stopped", c.told(id, runtimeapi.ContainerEventType_CONTAINER_STOPPED_EVENT))
	c.must(c.Runtime.RemoveContainer(c.ctx, id))
	c.until("deleted", c.told(id, runtimeapi.ContainerEventType_CONTAINER_DELETED_EVENT))
}

func execSync(c *check) {
	sandbox, id := c.start(Obeys)
	out, _, err := c.Runtime.ExecSync(c.ctx, id, []string{"echo", "hello"}, patience)
	if err != nil || string(out) != "hello\n" {
		c.t.Errorf("%q %v", out, err)
	}
	_, _, err = c.Runtime.ExecSync(c.ctx, id, []string{"sh", "-c", Fails}, patience)
	var exit utilexec.ExitError
	if !errors.As(err, &exit) || exit.ExitStatus() != 3 {
		c.t.Errorf("exit code: %v", err)
	}
	c.must(c.Runtime.StopPodSandbox(c.ctx, sandbox))
	if _, _, err := c.Runtime.ExecSync(c.ctx, id, []string{"echo"}, time.Second); err == nil {
		c.t.Error("a command ran in a container that has ended")
	}
}

func imageStatus(c *check) {
	resp, err := c.Images.ImageStatus(c.ctx, &runtimeapi.ImageSpec{Image: c.Image}, false)
	c.must(err)
	if resp.GetImage().GetId() == "" || len(resp.Image.RepoTags) == 0 || resp.Image.Size == 0 {
		c.t.Errorf("%v", resp.Image)
	}
	byID, err := c.Images.ImageStatus(c.ctx, &runtimeapi.ImageSpec{Image: resp.Image.Id}, false)
	if err != nil || byID.GetImage().GetId() != resp.Image.Id {
		c.t.Errorf("by ID: %v %v", byID, err)
	}
	none, err := c.Images.ImageStatus(c.ctx, &runtimeapi.ImageSpec{Image: "registry.invalid/none:1"}, false)
	if err != nil || none.Image != nil {
		c.t.Errorf("%v %v", none, err)
	}
	list, err := c.Images.ListImages(c.ctx, nil)
	if err != nil || !slices.ContainsFunc(list, func(i *runtimeapi.Image) bool { return i.Id == resp.Image.Id }) {
		c.t.Errorf("%v %v", list, err)
	}
}

func pullMissing(c *check) {
	if ref, err := c.Images.PullImage(c.ctx, &runtimeapi.ImageSpec{Image: "registry.invalid/none:1"}, nil, nil); err == nil {
		c.t.Errorf("pulled %s", ref)
	}
}

func imageRemove(c *check) {
	spec := &runtimeapi.ImageSpec{Image: c.Image}
	c.must(c.Images.RemoveImage(c.ctx, spec))
	if resp, err := c.Images.ImageStatus(c.ctx, spec, false); err != nil || resp.Image != nil {
		c.t.Errorf("%v %v", resp, err)
	}
	c.must(c.Images.RemoveImage(c.ctx, spec))
}
