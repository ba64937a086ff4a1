package cri

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"google.golang.org/protobuf/encoding/protojson"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"wherry.dev/internal/image"
)

// childEnv makes the test binary a runtime that does one thing and is killed.
const childEnv = "WHERRY_TEST_CHILD"

// job is what a child does.
type job struct {
	Config  Config
	Images  string
	Verb    string
	Pod     json.RawMessage // PodSandboxConfig
	Create  json.RawMessage // ContainerConfig
	Sandbox string
	ID      string
}

// runChild runs the test binary as that runtime.
func runChild() (code int, ok bool) {
	doc := os.Getenv(childEnv)
	if doc == "" {
		return 0, false
	}
	if err := child(context.Background(), doc); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1, true
	}
	return 0, true
}

func child(ctx context.Context, doc string) error {
	var j job
	if err := json.Unmarshal([]byte(doc), &j); err != nil {
		return err
	}
	var pod runtimeapi.PodSandboxConfig
	if err := protojson.Unmarshal(j.Pod, &pod); err != nil {
		return err
	}
	var create runtimeapi.ContainerConfig
	if err := protojson.Unmarshal(j.Create, &create); err != nil {
		return err
	}
	images, err := image.Open(j.Images)
	if err != nil {
		return err
	}
	s, err := New(ctx, j.Config, images)
	if err != nil {
		return err
	}
	defer s.Close()
	r := s.Runtime()
	switch j.Verb {
	case "run":
		_, err = r.RunPodSandbox(ctx, &pod, "")
	case "create":
		_, err = r.CreateContainer(ctx, j.Sandbox, &create, &pod)
	case "start":
		err = r.StartContainer(ctx, j.ID)
	case "stop container":
		err = r.StopContainer(ctx, j.ID, 60)
	case "kill container":
		err = r.StopContainer(ctx, j.ID, 0)
	case "remove container":
		err = r.RemoveContainer(ctx, j.ID)
	case "stop":
		err = r.StopPodSandbox(ctx, j.Sandbox)
	case "remove":
		err = r.RemovePodSandbox(ctx, j.Sandbox)
	default:
		return fmt.Errorf("unknown verb %s", j.Verb)
	}
	if err == nil { // what continues in the background
		err = s.settled(ctx)
	}
	return err
}

// settled waits until nothing is left to do for containers that have exited.
func (s *Server) settled(ctx context.Context) error {
	for _, c := range s.containers {
		if !c.Ended() {
			continue
		}
		select {
		case <-c.Cleaned():
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// killedAt runs the job in a child that is killed at the step.
func (n *node) killedAt(step string, j job, pod *runtimeapi.PodSandboxConfig, create *runtimeapi.ContainerConfig) {
	n.t.Helper()
	n.stop()
	j.Config, j.Images = n.cfg, filepath.Join(n.dir, "images")
	var err error
	j.Pod, err = protojson.Marshal(pod)
	n.must(err)
	j.Create, err = protojson.Marshal(create)
	n.must(err)
	doc, err := json.Marshal(j)
	n.must(err)
	cmd := exec.CommandContext(n.t.Context(), os.Args[0], "-test.run=^$")
	cmd.Env = append(os.Environ(), childEnv+"="+string(doc), "WHERRY_TEST_FAILPOINT="+step)
	out := &strings.Builder{}
	cmd.Stdout, cmd.Stderr = out, out
	err = cmd.Run()
	if ws, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); !ok || !ws.Signaled() || ws.Signal() != syscall.SIGKILL {
		n.t.Fatalf("%s was not reached in %s: %v\n%s", step, j.Verb, err, out)
	}
	n.openImages()
	n.start()
}

func TestKillBetweenAnyTwoSteps(t *testing.T) {
	for verb, steps := range map[string][]string{
		"run": {
			"sandbox-folder", "sandbox-recorded", "sandbox-files", "sandbox-namespaces", "sandbox-network", "conmon-started", "sandbox-init", "sandbox-ready",
		},
		"create": {
			"container-folder", "container-recorded", "container-folders", "container-rootfs", "container-spec", "container-cgroup",
			"conmon-started", "container-created", "container-status",
		},
		"start":            {"start-intended", "start-opened", "start-written", "start-done", "start-recorded"},
		"stop container":   {"stop-signalled", "exit-read", "exit-recorded", "release-mounts", "release-runtime"},
		"kill container":   {"stop-kill", "stop-killed", "exit-read"},
		"remove container": {"remove-released", "remove-exit", "remove-bundle"},
		"stop":             {"release-init", "release-network", "release-namespaces", "sandbox-stopped"},
		"remove":           {"clear-released", "clear-state"},
	} {
		for _, step := range steps {
			t.Run(verb+" "+step, func(t *testing.T) {
				t.Parallel()
				n := newNode(t)
				witness := n.pod() // must not notice anything
				runs := witness.sh("runs", `i=0; while :; do i=$((i+1)); echo line $i; sleep 0.01; done`)
				started := n.status(runs).StartedAt
				n.repeat(step, verb)
				st := n.status(runs)
				if st.State != runtimeapi.ContainerState_CONTAINER_RUNNING || st.StartedAt != started {
					t.Errorf("the witness: %+v", st)
				}
				if out := n.exec(runs, "echo", "alive"); out != "alive\n" {
					t.Errorf("exec in the witness: %q", out)
				}
				n.must(n.run.StopContainer(t.Context(), runs, 0))
				checkLines(t, logText(t, st.LogPath, "stdout"))
			})
		}
	}
}

// repeat kills the runtime at the step of the verb, repeats the verb as the kubelet would, and
// takes the pod through the rest of its life.
func (n *node) repeat(step, verb string) {
	n.t.Helper()
	ctx := n.t.Context()
	cfg := n.podConfig(sharedPID)
	c := inSharedPID(containerConfig("c", "sh", "-c", "trap 'echo line 2; exit 7' TERM; echo line 1; sleep 1000 & wait"))
	var err error
	j := job{Verb: verb}
	if verb == "run" {
		n.killedAt(step, j, cfg, c)
	}
	j.Sandbox, err = n.run.RunPodSandbox(ctx, cfg, "")
	n.must(err)
	if verb == "create" {
		n.killedAt(step, j, cfg, c)
	}
	j.ID, err = n.run.CreateContainer(ctx, j.Sandbox, c, cfg)
	n.must(err)
	if verb == "start" {
		n.killedAt(step, j, cfg, c)
	}
	if n.status(j.ID).State == runtimeapi.ContainerState_CONTAINER_CREATED {
		n.must(n.run.StartContainer(ctx, j.ID))
	}
	st := n.status(j.ID)
	if st.State != runtimeapi.ContainerState_CONTAINER_RUNNING {
		n.t.Errorf("after the start: %+v", st)
	}
	if out := n.exec(j.ID, "hostname"); out != cfg.Hostname+"\n" {
		n.t.Errorf("hostname %q", out)
	}
	waitFor(n.t, "the first line", func() bool { return logText(n.t, st.LogPath, "stdout") != "" })
	n.repeatStop(step, j, cfg, c)
	if verb == "remove container" {
		n.killedAt(step, j, cfg, c)
	}
	n.must(n.run.RemoveContainer(ctx, j.ID))
	if verb == "stop" {
		n.killedAt(step, j, cfg, c)
	}
	n.must(n.run.StopPodSandbox(ctx, j.Sandbox))
	if verb == "remove" {
		n.killedAt(step, j, cfg, c)
	}
	n.must(n.run.RemovePodSandbox(ctx, j.Sandbox))
	if bs, _ := n.run.ListPodSandbox(ctx, nil); len(bs) != 1 {
		n.t.Errorf("sandboxes left: %v", bs)
	}
	if cs, _ := n.run.ListContainers(ctx, nil); len(cs) != 1 {
		n.t.Errorf("containers left: %v", cs)
	}
}

// repeatStop does the same for the end of the container: its exit code and log must be what they
// would have been without the kill.
func (n *node) repeatStop(step string, j job, cfg *runtimeapi.PodSandboxConfig, c *runtimeapi.ContainerConfig) {
	n.t.Helper()
	code, lines, grace := int32(7), 2, int64(60)
	switch j.Verb {
	case "stop container":
		n.killedAt(step, j, cfg, c)
	case "kill container":
		code, lines, grace = 137, 1, 0
		n.killedAt(step, j, cfg, c)
	}
	n.must(n.run.StopContainer(n.t.Context(), j.ID, grace))
	st := n.status(j.ID)
	if st.State != runtimeapi.ContainerState_CONTAINER_EXITED || st.ExitCode != code || st.Reason != "Error" || st.FinishedAt < st.StartedAt {
		n.t.Errorf("after the stop: %+v", st)
	}
	text := logText(n.t, st.LogPath, "stdout")
	checkLines(n.t, text)
	if strings.Count(text, "\n") != lines {
		n.t.Errorf("the log: %q", text)
	}
}
