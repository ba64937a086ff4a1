package podplan

import (
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
)

// An app used to start before the proxy in front of it: upstream's kubelet starts containers one
// after the other, and a postStart hook holds back the containers after its own.
func TestPostStartHookHoldsTheContainersBehindIt(t *testing.T) {
	hook := &v1.Lifecycle{PostStart: &v1.LifecycleHandler{Exec: &v1.ExecAction{Command: []string{"wait"}}}}
	proxy := func(c Container) Container {
		c.ID, c.Name, c.SandboxID, c.Created, c.Started = "1", "proxy", "s", noon, noon
		return c
	}
	pull := Failure{Count: 1, At: noon.Add(-time.Minute), Reason: ReasonErrImagePull}
	for name, tc := range map[string]struct {
		change func(*Input)
		held   bool
	}{
		"its image is pulled": {func(in *Input) {
			in.InFlight[ImageKey("proxy", "i")] = Flight{Op: Op{Kind: PullImage, Name: "proxy", Image: "i"}}
		}, true},
		"it is made":      {func(in *Input) { in.Images["proxy"] = Image{Name: "i"} }, true},
		"it waits":        {func(in *Input) { in.Containers = []Container{proxy(Container{State: Created})} }, true},
		"its hook runs":   {func(in *Input) { in.Containers = []Container{proxy(Container{State: Running})} }, true},
		"its pull fails":  {func(in *Input) { in.Failures[ImageKey("proxy", "i")] = pull }, false},
		"it is not made":  {func(in *Input) { in.Failures[ContainerKey("proxy")] = Failure{Count: 1, At: noon, Reason: "x"} }, false},
		"it has no hook":  {func(in *Input) { in.Pod.Spec.Containers[0].Lifecycle = nil }, false},
		"it comes behind": {func(in *Input) { c := in.Pod.Spec.Containers; c[0], c[1] = c[1], c[0] }, false},
		"its hook is over": {func(in *Input) {
			in.Containers = []Container{proxy(Container{State: Running})}
			in.Hooks = map[string]Hook{"1": {Done: true}}
		}, false},
		"its hook failed": {func(in *Input) {
			in.Containers = []Container{proxy(Container{State: Running})}
			in.Hooks = map[string]Hook{"1": {Failed: "no"}}
		}, false},
		"it is backed off": {func(in *Input) {
			in.Containers = []Container{proxy(Container{State: Exited, Finished: noon})}
			in.Record.Containers = map[string]History{"proxy": {Wait: time.Minute}}
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			in := lifeOf(v1.RestartPolicyAlways, func(in *Input) {
				in.Pod.Spec.Containers = []v1.Container{{Name: "proxy", Image: "i", Lifecycle: hook}, {Name: "app", Image: "i"}}
				in.Record.Containers = map[string]History{"proxy": {HookPending: true}}
				in.Images["app"] = Image{Name: "i"}
			}, tc.change)
			if p := Next(in, noon); wants(p, CreateContainer, "app") == tc.held {
				t.Errorf("ops %+v, waits for %q", p.Ops, p.Waiting)
			}
			in.Images = map[string]Image{}
			if p := Next(in, noon); !wants(p, PullImage, "app") {
				t.Errorf("the image is not pulled meanwhile: %+v", p.Ops)
			}
		})
	}
}
