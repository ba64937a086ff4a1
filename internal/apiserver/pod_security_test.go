package apiserver

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// take returns what the server has warned of since the last time.
func (w *warnings) take() string {
	text := strings.Join(*w, "\n")
	*w = nil
	return text
}

func privileged(name string) *corev1.Pod {
	p := testPod(name)
	p.Spec.Containers[0].SecurityContext = &corev1.SecurityContext{Privileged: new(true)}
	return p
}

func TestPodSecurity(t *testing.T) {
	s := start(t)
	ctx, said := t.Context(), &warnings{}
	cfg := s.ClientConfig("admin", "system:masters")
	cfg.WarningHandler = said
	c := clientFor(t, cfg)
	mustPod(t, c, privileged("before"))
	if _, err := c.CoreV1().Pods("default").List(ctx, metav1.ListOptions{}); err != nil { // so that the cache has it
		t.Fatal(err)
	}
	ns, err := c.CoreV1().Namespaces().Get(ctx, "default", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	said.take()
	ns.Labels["pod-security.kubernetes.io/enforce"] = "baseline"
	ns.Labels["pod-security.kubernetes.io/warn"] = "restricted"
	if ns, err = c.CoreV1().Namespaces().Update(ctx, ns, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	if text := said.take(); !strings.Contains(text, `existing pods in namespace "default" violate the new PodSecurity enforce level "baseline:latest"`) ||
		!strings.Contains(text, "before: privileged") {
		t.Errorf("warnings about the namespace: %s", text)
	}
	// The watch cache learns of the labels after the write.
	eventually(t, func() error {
		_, err := c.CoreV1().Pods("default").Create(ctx, generated(privileged("")), metav1.CreateOptions{})
		if err == nil {
			return errors.New("a privileged pod was admitted")
		}
		refused(t, err, `violates PodSecurity "baseline:latest": privileged (container "c" must not set securityContext.privileged=true)`)
		return nil
	})
	said.take()
	mustPod(t, c, testPod("plain"))
	if text := said.take(); !strings.Contains(text, `would violate PodSecurity "restricted:latest": allowPrivilegeEscalation != false`) {
		t.Errorf("warnings about a pod: %s", text)
	}
	labels := map[string]string{"app": "a"}
	deploy := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: "d"}, Spec: appsv1.DeploymentSpec{
		Selector: &metav1.LabelSelector{MatchLabels: labels},
		Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: privileged("").Spec},
	}}
	if _, err := c.AppsV1().Deployments("default").Create(ctx, deploy, metav1.CreateOptions{}); err != nil {
		t.Fatal(err) // a template is only warned of
	}
	if text := said.take(); !strings.Contains(text, `would violate PodSecurity "restricted:latest": privileged`) {
		t.Errorf("warnings about a deployment: %s", text)
	}
	ns.Labels["pod-security.kubernetes.io/enforce"] = "strict"
	_, err = c.CoreV1().Namespaces().Update(ctx, ns, metav1.UpdateOptions{})
	refused(t, err, `metadata.labels[pod-security.kubernetes.io/enforce]: Invalid value: "strict": must be one of privileged, baseline, restricted`)
}

func TestPodSecurityIsConfigured(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	write("security.yaml", `
apiVersion: pod-security.admission.config.k8s.io/v1
kind: PodSecurityConfiguration
defaults: {enforce: baseline}
exemptions: {usernames: [friend]}
`)
	file := write("admission.yaml", `
apiVersion: apiserver.config.k8s.io/v1
kind: AdmissionConfiguration
plugins:
- {name: PodSecurity, path: security.yaml}
- name: PodNodeSelector
  configuration: {podNodeSelectorPluginConfig: {clusterDefaultNodeSelector: disk=ssd}}
`)
	s := start(t, func(c *Config) {
		c.AdmissionConfigFile, c.EnableAdmission = file, []string{"PodNodeSelector", "NamespaceAutoProvision"}
	})
	friend := clientFor(t, s.ClientConfig("friend", "system:masters"))
	_, err := admin(t, s).CoreV1().Pods("default").Create(t.Context(), privileged("p"), metav1.CreateOptions{})
	refused(t, err, `violates PodSecurity "baseline:latest"`)
	if p := mustPod(t, friend, privileged("p")); p.Spec.NodeSelector["disk"] != "ssd" {
		t.Errorf("node selector %v", p.Spec.NodeSelector)
	}
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "s", Namespace: "new"}}
	if _, err := friend.CoreV1().Secrets("new").Create(t.Context(), secret, metav1.CreateOptions{}); err != nil {
		t.Errorf("in a namespace that is to be made: %v", err)
	}
}

func TestTopologyReachesBoundPods(t *testing.T) {
	s := start(t)
	ctx, c := t.Context(), admin(t, s)
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", Labels: map[string]string{
		corev1.LabelTopologyZone: "z", corev1.LabelTopologyRegion: "r", "other": "o",
	}}}
	node, err := c.CoreV1().Nodes().Create(ctx, node, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if len(node.Spec.Taints) != 1 || node.Spec.Taints[0].Key != corev1.TaintNodeNotReady || node.Spec.Taints[0].Effect != corev1.TaintEffectNoSchedule {
		t.Errorf("taints of a new node: %v", node.Spec.Taints)
	}
	mustPod(t, c, testPod("p"))
	binding := &corev1.Binding{ObjectMeta: metav1.ObjectMeta{Name: "p"}, Target: corev1.ObjectReference{Kind: "Node", Name: "n"}}
	if err := c.CoreV1().Pods("default").Bind(ctx, binding, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	p, err := c.CoreV1().Pods("default").Get(ctx, "p", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if p.Labels[corev1.LabelTopologyZone] != "z" || p.Labels[corev1.LabelTopologyRegion] != "r" || p.Labels["other"] != "" {
		t.Errorf("labels %v", p.Labels)
	}
}

func TestOwnersOfOthersAreNotHeldUp(t *testing.T) {
	s := start(t, func(c *Config) { c.EnableAdmission = []string{"OwnerReferencesPermissionEnforcement"} })
	ctx, c := t.Context(), admin(t, s)
	grant(t, s, "jane", "create", "secrets")
	grant(t, s, "jane", "update", "secrets")
	secrets := clientFor(t, s.ClientConfig("jane")).CoreV1().Secrets("default")
	owned := func(name string, block bool) *corev1.Secret {
		return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: name, OwnerReferences: []metav1.OwnerReference{{
			APIVersion: "apps/v1", Kind: "Deployment", Name: "d", UID: "u", BlockOwnerDeletion: &block,
		}}}}
	}
	if _, err := secrets.Create(ctx, owned("s", false), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	_, err := secrets.Create(ctx, owned("t", true), metav1.CreateOptions{})
	refused(t, err, "cannot set blockOwnerDeletion if an ownerReference refers to a resource you can't set finalizers on")
	_, err = secrets.Update(ctx, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "s"}}, metav1.UpdateOptions{})
	refused(t, err, "cannot set an ownerRef on a resource you can't delete")
	if _, err := c.CoreV1().Secrets("default").Create(ctx, owned("t", true), metav1.CreateOptions{}); err != nil {
		t.Errorf("who may do everything: %v", err)
	}
}
