package e2e

import (
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"wherry.dev/test/images"
)

func TestInitContainersRunInOrderBeforeTheOthers(t *testing.T) {
	startCluster(t).initContainersRunInOrder()
}

func (c *cluster) initContainersRunInOrder() {
	t := c.t
	t.Helper()
	c.create(busybox("init", script("cat /s/log; "+loop), func(p *v1.Pod) {
		p.Spec.Volumes = []v1.Volume{{Name: "s", VolumeSource: v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{}}}}
		mount := []v1.VolumeMount{{Name: "s", MountPath: "/s"}}
		p.Spec.Containers[0].VolumeMounts = mount
		for _, n := range []string{"one", "two"} {
			p.Spec.InitContainers = append(p.Spec.InitContainers, v1.Container{
				Name: n, Image: "docker.io/library/busybox:1.36", Command: []string{"sh", "-c", "echo " + n + " >> /s/log"}, VolumeMounts: mount,
			})
		}
	}))
	p := c.await("init", "ready", ready)
	c.awaitLog("one\ntwo\n", "init", "-c", "main")
	for _, s := range p.Status.InitContainerStatuses {
		if s.State.Terminated == nil || s.State.Terminated.Reason != "Completed" {
			t.Error(describe(p))
		}
	}
	c.delete("init")
}

func TestProbes(t *testing.T) { startCluster(t).probesDecide() }

func (c *cluster) probesDecide() {
	t := c.t
	t.Helper()
	httpd := "mkdir -p /www && echo ok > /www/ready && httpd -p 8080 -h /www && " + loop
	c.create(busybox("probed", script(httpd), func(p *v1.Pod) {
		m := &p.Spec.Containers[0]
		probe := func(h v1.ProbeHandler) *v1.Probe {
			return &v1.Probe{ProbeHandler: h, PeriodSeconds: 1, TimeoutSeconds: 60, FailureThreshold: 2}
		}
		m.StartupProbe = probe(v1.ProbeHandler{TCPSocket: &v1.TCPSocketAction{Port: intstr.FromInt32(8080)}})
		m.StartupProbe.FailureThreshold = 300
		m.ReadinessProbe = probe(v1.ProbeHandler{HTTPGet: &v1.HTTPGetAction{Path: "/ready", Port: intstr.FromInt32(8080)}})
		m.LivenessProbe = probe(v1.ProbeHandler{Exec: &v1.ExecAction{Command: []string{"test", "!", "-e", "/tmp/sick"}}})
	}))
	c.await("probed", "ready", ready)
	c.exec("probed", "rm", "/www/ready")
	c.await("probed", "not ready", func(p *v1.Pod) bool { return p != nil && !ready(p) })
	c.exec("probed", "sh", "-c", "echo ok > /www/ready")
	c.await("probed", "ready again", ready)
	c.exec("probed", "touch", "/tmp/sick")
	p := c.await("probed", "restarted and ready", func(p *v1.Pod) bool {
		return ready(p) && p.Status.ContainerStatuses[0].RestartCount == 1
	})
	if p.Status.ContainerStatuses[0].LastTerminationState.Terminated == nil {
		t.Error(describe(p))
	}
	c.awaitEvent("probed", "Unhealthy")
	c.delete("probed")
}

func TestGRPCProbes(t *testing.T) {
	c := newCluster(t)
	c.addImage("health.tar", saveProgram(t, "wherry.dev/test/images/health", "wherry.dev/health:1"))
	c.up()
	c.create(busybox("grpc", func(p *v1.Pod) {
		m := &p.Spec.Containers[0]
		m.Image, m.Command = "wherry.dev/health:1", []string{"/program"}
		h := v1.ProbeHandler{GRPC: &v1.GRPCAction{Port: 9090, Service: new("tool")}}
		m.StartupProbe = &v1.Probe{ProbeHandler: h, PeriodSeconds: 1, FailureThreshold: 300}
		m.ReadinessProbe = &v1.Probe{ProbeHandler: h, PeriodSeconds: 1, TimeoutSeconds: 60}
		m.LivenessProbe = &v1.Probe{ProbeHandler: h, PeriodSeconds: 1, TimeoutSeconds: 60, FailureThreshold: 2}
	}))
	c.await("grpc", "ready", ready)
	c.exec("grpc", "/program", "sick")
	c.await("grpc", "restarted", func(p *v1.Pod) bool { return ready(p) && p.Status.ContainerStatuses[0].RestartCount > 0 })
	c.until("no event tells of the liveness probe", func() bool { // events come after the status
		return strings.Contains(c.kubectl("get", "events"), `Liveness probe failed: service unhealthy (responded with "NOT_SERVING")`)
	})
	c.delete("grpc")
}

func TestTerminationKeepsTheGracePeriod(t *testing.T) {
	startCluster(t).terminationKeepsTheGracePeriod()
}

func (c *cluster) terminationKeepsTheGracePeriod() {
	t := c.t
	t.Helper()
	c.create(busybox("polite", script("trap 'echo bye; exit 0' TERM; while true; do sleep 1000 & wait $!; done")))
	c.create(busybox("stubborn", script("trap '' TERM; while true; do sleep 1; done"), func(p *v1.Pod) {
		p.Spec.TerminationGracePeriodSeconds = new(int64(1))
	}))
	c.await("polite", "ready", ready)
	c.await("stubborn", "ready", ready)
	c.delete("polite")
	c.delete("stubborn")
}

func TestImageThatComesLater(t *testing.T) {
	needsOwnRuntime(t)
	c := startCluster(t)
	c.create(busybox("later", func(p *v1.Pod) {
		p.Spec.Containers[0].Image = "127.0.0.1:1/none/such:1"
	}))
	reason := func(want string) func(*v1.Pod) bool {
		return func(p *v1.Pod) bool {
			return p != nil && len(p.Status.ContainerStatuses) == 1 && p.Status.ContainerStatuses[0].State.Waiting != nil &&
				p.Status.ContainerStatuses[0].State.Waiting.Reason == want
		}
	}
	c.await("later", "in RegistryUnavailable", reason("RegistryUnavailable"))
	c.await("later", "in ImagePullBackOff", reason("ImagePullBackOff"))
	c.awaitEvent("later", "Failed")
	c.awaitEvent("later", "BackOff")
	file := t.TempDir() + "/later.tar"
	root, err := images.Busybox()
	if err != nil {
		t.Fatal(err)
	}
	img, err := images.New(imageConfig(), root)
	if err != nil {
		t.Fatal(err)
	}
	if err := images.Save(file, img, "127.0.0.1:1/none/such:1"); err != nil {
		t.Fatal(err)
	}
	c.must("image", "import", file)
	c.await("later", "ready", ready)
	c.delete("later")
}

func TestImageCommands(t *testing.T) {
	needsOwnRuntime(t)
	c := startCluster(t)
	if out := c.must("image", "list"); !strings.Contains(out, "docker.io/library/busybox:1.36") {
		t.Errorf("list: %s", out)
	}
	c.create(busybox("holds"))
	c.await("holds", "ready", ready)
	if out := c.must("image", "prune"); !strings.Contains(out, "0 images") {
		t.Errorf("prune took an image in use: %s", out)
	}
	c.delete("holds")
	c.must("image", "remove", "busybox:1.36")
	if _, err := c.try("image", "remove", "busybox:1.36"); err == nil || !strings.Contains(err.Error(), "not found") {
		t.Errorf("removing what is not there: %v", err)
	}
	if _, err := c.try("image", "import", "/nonexistent.tar"); err == nil || !strings.Contains(err.Error(), "/nonexistent.tar") {
		t.Errorf("importing what is not there: %v", err)
	}
}

func TestNoExecuteTaintEvictsWhatDoesNotTolerateIt(t *testing.T) {
	c := startCluster(t)
	c.create(busybox("leaves"))
	c.create(busybox("stays", func(p *v1.Pod) {
		p.Spec.Tolerations = []v1.Toleration{{Key: "evacuate", Operator: v1.TolerationOpExists}}
	}))
	c.await("leaves", "ready", ready)
	c.await("stays", "ready", ready)
	c.kubectl("taint", "node", c.flags[1], "evacuate=now:NoExecute")
	c.await("leaves", "gone", gone)
	c.exec("stays", "true")
}
