package e2e

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestVolumesAndEnvironment(t *testing.T) { startCluster(t).volumesAndEnvironment() }

func (c *cluster) volumesAndEnvironment() {
	t := c.t
	t.Helper()
	host := t.TempDir()
	if err := os.WriteFile(filepath.Join(host, "f"), []byte("from the host"), 0o600); err != nil {
		t.Fatal(err)
	}
	c.kubectl("create", "configmap", "cm", "--from-literal=color=blue", "--from-literal=size=7")
	c.kubectl("create", "secret", "generic", "sec", "--from-literal=password=s3cret")
	c.create(busybox("v", func(p *v1.Pod) {
		p.Labels = map[string]string{"app": "demo"}
		p.Spec.Volumes = []v1.Volume{
			{Name: "empty", VolumeSource: v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{}}},
			{Name: "mem", VolumeSource: v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{Medium: v1.StorageMediumMemory}}},
			{Name: "host", VolumeSource: v1.VolumeSource{HostPath: &v1.HostPathVolumeSource{Path: host}}},
			{Name: "cm", VolumeSource: v1.VolumeSource{ConfigMap: &v1.ConfigMapVolumeSource{LocalObjectReference: v1.LocalObjectReference{Name: "cm"}}}},
			{Name: "sec", VolumeSource: v1.VolumeSource{Secret: &v1.SecretVolumeSource{SecretName: "sec", DefaultMode: new(int32(0o400))}}},
			{Name: "down", VolumeSource: v1.VolumeSource{DownwardAPI: &v1.DownwardAPIVolumeSource{Items: []v1.DownwardAPIVolumeFile{
				{Path: "labels", FieldRef: &v1.ObjectFieldSelector{FieldPath: "metadata.labels"}},
			}}}},
		}
		m := &p.Spec.Containers[0]
		for _, v := range p.Spec.Volumes {
			m.VolumeMounts = append(m.VolumeMounts, v1.VolumeMount{Name: v.Name, MountPath: "/mnt/" + v.Name})
		}
		m.EnvFrom = []v1.EnvFromSource{{Prefix: "CM_", ConfigMapRef: &v1.ConfigMapEnvSource{LocalObjectReference: v1.LocalObjectReference{Name: "cm"}}}}
		m.Env = []v1.EnvVar{
			{Name: "PASSWORD", ValueFrom: &v1.EnvVarSource{SecretKeyRef: &v1.SecretKeySelector{LocalObjectReference: v1.LocalObjectReference{Name: "sec"}, Key: "password"}}},
			{Name: "POD_IP", ValueFrom: &v1.EnvVarSource{FieldRef: &v1.ObjectFieldSelector{FieldPath: "status.podIP"}}},
			{Name: "LIMIT", ValueFrom: &v1.EnvVarSource{ResourceFieldRef: &v1.ResourceFieldSelector{Resource: "limits.memory", Divisor: resource.MustParse("1Mi")}}},
			{Name: "BOTH", Value: "$(PASSWORD)-$(CM_color)-$$(no)"},
		}
		m.Resources.Limits = v1.ResourceList{v1.ResourceMemory: resource.MustParse("64Mi"), v1.ResourceCPU: resource.MustParse("500m")}
	}))
	p := c.await("v", "ready", ready)
	env := "\n" + c.exec("v", "env")
	for _, want := range []string{"CM_color=blue", "CM_size=7", "PASSWORD=s3cret", "POD_IP=" + p.Status.PodIP, "LIMIT=64", "BOTH=s3cret-blue-$(no)", "KUBERNETES_SERVICE_PORT=443", "HOSTNAME=v"} {
		if !strings.Contains(env, "\n"+want+"\n") {
			t.Errorf("%s is not in the environment:%s", want, env)
		}
	}
	files := c.exec("v", "sh", "-c", "cat /mnt/host/f; echo; cat /mnt/cm/color; echo; cat /mnt/sec/password; echo; cat /mnt/down/labels; echo; "+
		"stat -L -c %a /mnt/sec/password; echo x > /mnt/empty/x && cat /mnt/empty/x; df -P /mnt/mem | tail -1 | cut -d' ' -f1; cat /var/run/secrets/kubernetes.io/serviceaccount/namespace")
	if want := "from the host\nblue\ns3cret\napp=\"demo\"\n400\nx\ntmpfs\ndefault"; files != want {
		t.Errorf("files: got\n%s\nwant\n%s", files, want)
	}
	if p.Status.QOSClass != v1.PodQOSGuaranteed {
		t.Errorf("QoS class %s", p.Status.QOSClass)
	}
	// a change of the config map reaches the pod
	c.kubectl("patch", "configmap", "cm", "--type=merge", "-p", `{"data":{"color":"red"}}`)
	c.exec("v", "sh", "-c", `for i in $(seq 900); do [ "$(cat /mnt/cm/color)" = red ] && exit 0; sleep 0.1; done; exit 1`)
	c.delete("v")
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil || strings.Contains(string(mounts), string(p.UID)) {
		t.Errorf("mounts of the pod are left (%v)", err)
	}
}

func TestMissingConfigMapHoldsThePodUntilItComes(t *testing.T) {
	c := startCluster(t)
	c.create(busybox("waits", func(p *v1.Pod) {
		p.Spec.Volumes = []v1.Volume{{Name: "cm", VolumeSource: v1.VolumeSource{ConfigMap: &v1.ConfigMapVolumeSource{LocalObjectReference: v1.LocalObjectReference{Name: "later"}}}}}
		p.Spec.Containers[0].VolumeMounts = []v1.VolumeMount{{Name: "cm", MountPath: "/cm"}}
	}))
	c.awaitEvent("waits", "FailedMount")
	c.kubectl("create", "configmap", "later", "--from-literal=a=b")
	c.await("waits", "ready", ready)
	c.delete("waits")
}

// awaitEvent waits for an event of a pod.
func (c *cluster) awaitEvent(pod, reason string) {
	c.t.Helper()
	w, err := c.client.CoreV1().Events(metav1.NamespaceDefault).Watch(c.t.Context(), metav1.ListOptions{
		FieldSelector:  "involvedObject.name=" + pod + ",reason=" + reason,
		TimeoutSeconds: new(int64(patience.Seconds())),
	})
	if err != nil {
		c.t.Fatal(err)
	}
	defer w.Stop()
	list, err := c.client.CoreV1().Events(metav1.NamespaceDefault).List(c.t.Context(), metav1.ListOptions{FieldSelector: "involvedObject.name=" + pod + ",reason=" + reason})
	if err != nil {
		c.t.Fatal(err)
	}
	if len(list.Items) > 0 {
		return
	}
	if _, ok := <-w.ResultChan(); !ok {
		c.t.Fatalf("no event %s of pod %s within %s:\n%s", reason, pod, patience, c.kubectl("get", "events"))
	}
}
