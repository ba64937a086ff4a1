package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	imagev1 "github.com/google/go-containerregistry/pkg/v1"
	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	nodes "wherry.dev/test/cluster"
	"wherry.dev/test/images"
)

const flannelImage = "docker.io/flannel/flannel:test"

// saveFlannel makes an image of flannel's programs, with the tools that they call.
func saveFlannel(path, daemon, plugin string) error {
	root, err := images.Busybox()
	if err != nil {
		return err
	}
	const iptables = "/usr/sbin/xtables-nft-multi" // of Debian's iptables
	for _, tool := range []string{"/usr/sbin/nft", iptables} {
		if err := root.AddTool(tool); err != nil {
			return err
		}
	}
	for _, name := range []string{"iptables", "ip6tables", "iptables-save", "ip6tables-save", "iptables-restore", "ip6tables-restore"} {
		root["usr/sbin/"+name] = images.File{Link: filepath.Base(iptables)}
	}
	for to, from := range map[string]string{"opt/bin/flanneld": daemon, "flannel": plugin} {
		doc, err := os.ReadFile(from)
		if err != nil {
			return err
		}
		root[to] = images.File{Data: doc, Mode: 0o755}
	}
	img, err := images.New(imagev1.Config{Env: []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin"}, Cmd: []string{"sh"}}, root)
	if err != nil {
		return err
	}
	return images.Save(path, img, flannelImage)
}

// flannelConfig is the config map of a machine: machines share their file system, so that the files of each have to be apart.
func flannelConfig(t *testing.T, m *nodes.Machine) map[string]string {
	t.Helper()
	docs := map[string]any{
		"cni-conf.json": map[string]any{
			"name": "cbr0", "cniVersion": "0.3.1", "plugins": []any{
				map[string]any{"type": "flannel", "subnetFile": filepath.Join(m.Data, "flannel", "subnet.env"), "dataDir": filepath.Join(m.Data, "flannel", "cni"),
					"delegate": map[string]any{"hairpinMode": true, "isDefaultGateway": true}},
				map[string]any{"type": "portmap", "capabilities": map[string]any{"portMappings": true}},
			},
		},
		"net-conf.json": map[string]any{"Network": "10.244.0.0/16", "EnableNFTables": true, "Backend": map[string]any{"Type": "vxlan"}},
	}
	data := map[string]string{}
	for name, doc := range docs {
		text, err := json.Marshal(doc)
		if err != nil {
			t.Fatal(err)
		}
		data[name] = string(text)
	}
	return data
}

// flannel is a daemon set for a machine, as flannel's manifest has it.
func flannel(m *nodes.Machine, plugins string) *appsv1.DaemonSet {
	label := map[string]string{"app": "flannel", "on": m.Name}
	folder := func(name, path string) v1.Volume {
		return v1.Volume{Name: name, VolumeSource: v1.VolumeSource{HostPath: &v1.HostPathVolumeSource{Path: path, Type: new(v1.HostPathDirectoryOrCreate)}}}
	}
	mount := func(name, path string) v1.VolumeMount { return v1.VolumeMount{Name: name, MountPath: path} }
	env := func(name, field string) v1.EnvVar {
		return v1.EnvVar{Name: name, ValueFrom: &v1.EnvVarSource{FieldRef: &v1.ObjectFieldSelector{FieldPath: field}}}
	}
	container := func(name string, command []string, mounts ...v1.VolumeMount) v1.Container {
		return v1.Container{Name: name, Image: flannelImage, ImagePullPolicy: v1.PullNever, Command: command, VolumeMounts: mounts}
	}
	daemon := container("kube-flannel", []string{"/opt/bin/flanneld", "--ip-masq", "--kube-subnet-mgr"}, mount("run", "/run/flannel"), mount("config", "/etc/kube-flannel"))
	daemon.Env = []v1.EnvVar{env("POD_NAME", "metadata.name"), env("POD_NAMESPACE", "metadata.namespace")}
	daemon.SecurityContext = &v1.SecurityContext{Capabilities: &v1.Capabilities{Add: []v1.Capability{"NET_ADMIN", "NET_RAW"}}}
	return &appsv1.DaemonSet{
		ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "flannel-" + m.Name},
		Spec: appsv1.DaemonSetSpec{Selector: &metav1.LabelSelector{MatchLabels: label}, Template: v1.PodTemplateSpec{
			ObjectMeta: metav1.ObjectMeta{Labels: label},
			Spec: v1.PodSpec{
				HostNetwork: true, ServiceAccountName: "flannel", PriorityClassName: "system-node-critical", NodeSelector: map[string]string{v1.LabelHostname: m.Name},
				Tolerations: []v1.Toleration{{Operator: v1.TolerationOpExists, Effect: v1.TaintEffectNoSchedule}},
				InitContainers: []v1.Container{
					container("install-cni-plugin", []string{"cp", "-f", "/flannel", "/opt/cni/bin/flannel"}, mount("plugins", "/opt/cni/bin")),
					container("install-cni", []string{"cp", "-f", "/etc/kube-flannel/cni-conf.json", "/etc/cni/net.d/10-flannel.conflist"}, mount("cni", "/etc/cni/net.d"), mount("config", "/etc/kube-flannel")),
				},
				Containers: []v1.Container{daemon},
				Volumes: []v1.Volume{
					folder("run", filepath.Join(m.Data, "flannel")), folder("cni", filepath.Join(m.Data, "cni", "net.d")), folder("plugins", plugins),
					{Name: "config", VolumeSource: v1.VolumeSource{ConfigMap: &v1.ConfigMapVolumeSource{LocalObjectReference: v1.LocalObjectReference{Name: "flannel-" + m.Name}}}},
				},
			},
		}},
	}
}

// Somebody else's network is installed by pods, on a cluster that has none until then: flannel's own daemon and plugin, with our
// bridge and portmap behind them. FLANNEL is the path of flanneld, FLANNEL_CNI that of its plugin.
func TestFlannel(t *testing.T) {
	daemon, plugin := os.Getenv("FLANNEL"), os.Getenv("FLANNEL_CNI")
	if daemon == "" || plugin == "" {
		t.Skip("set FLANNEL and FLANNEL_CNI to the paths of flannel's daemon and of its CNI plugin")
	}
	s := newSeveral(t, 2, 0)
	plugins := filepath.Join(filepath.Dir(filepath.Dir(s.net.Machines[0].Data)), "plugins")
	if _, err := s.on(s.net.Machines[0], "cni", "install", plugins); err != nil {
		t.Fatal(err)
	}
	for _, m := range s.net.Machines {
		if err := saveFlannel(filepath.Join(m.Data, "images", "flannel.tar"), daemon, plugin); err != nil {
			t.Fatal(err)
		}
	}
	s.serve("--network-mode", "none", "--cni-bin-dir", plugins)
	if err := s.join(s.net.Machines[1], "--cni-bin-dir", plugins); err != nil {
		t.Fatal(err)
	}
	ctx, kube := t.Context(), s.client.CoreV1()
	_, err := kube.ServiceAccounts("kube-system").Create(ctx, &v1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "flannel"}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	rule := func(resource string, verbs ...string) rbacv1.PolicyRule {
		return rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{resource}, Verbs: verbs}
	}
	_, err = s.client.RbacV1().ClusterRoles().Create(ctx, &rbacv1.ClusterRole{
		ObjectMeta: metav1.ObjectMeta{Name: "flannel"},
		Rules:      []rbacv1.PolicyRule{rule("pods", "get"), rule("nodes", "get", "list", "watch"), rule("nodes/status", "patch")},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	_, err = s.client.RbacV1().ClusterRoleBindings().Create(ctx, &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "flannel"}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "flannel"},
		Subjects: []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: "kube-system", Name: "flannel"}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range s.net.Machines {
		config := &v1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "flannel-" + m.Name}, Data: flannelConfig(t, m)}
		if _, err := kube.ConfigMaps("kube-system").Create(ctx, config, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		if _, err := s.client.AppsV1().DaemonSets("kube-system").Create(ctx, flannel(m, plugins), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		s.create(teller(m))
	}
	for _, m := range s.net.Machines {
		s.await("on-"+m.Name, "ready", ready)
	}
	svc := s.telling("tellers", func(*v1.ServiceSpec) {})
	for _, from := range s.net.Machines {
		for _, to := range s.net.Machines {
			asker, p := s.cluster.get("on-"+from.Name), s.cluster.get("on-"+to.Name)
			s.eventually(from.Name+" → "+to.Name, func() error {
				name, source, err := s.asks(asker.Name, p.Status.PodIP)
				if err == nil && (name != p.Name || source != asker.Status.PodIP) {
					err = fmt.Errorf("%s answers %s, and %s asked", name, source, asker.Status.PodIP)
				}
				return err
			})
		}
		s.eventually("names on "+from.Name, func() error {
			out, err := s.kubectl("exec", "on-"+from.Name, "--", "nslookup", "tellers.default.svc.cluster.local")
			if err == nil && !strings.Contains(out, svc.Spec.ClusterIP) {
				err = errors.New(out)
			}
			return err
		})
		s.answersOf("the service from "+from.Name, "on-"+from.Name, svc.Spec.ClusterIP, "on-m1", "on-m2")
	}
}
