// Package flannel installs flannel's own daemon and CNI plugin on machines of a test, as its manifest does: an example of a network
// that is somebody else's.
package flannel

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"

	imagev1 "github.com/google/go-containerregistry/pkg/v1"
	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"wherry.dev/test/cluster"
	"wherry.dev/test/images"
)

const image = "docker.io/flannel/flannel:test"

// SaveImage makes an image of flannel's programs, with the tools that they call.
func SaveImage(path, daemon, plugin string) error {
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
	return images.Save(path, img, image)
}

// config is the config map of a machine: machines share their file system, so that the files of each have to be apart.
func config(m *cluster.Machine) (map[string]string, error) {
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
			return nil, err
		}
		data[name] = string(text)
	}
	return data, nil
}

// daemonSet is one for a machine, as flannel's manifest has it.
func daemonSet(m *cluster.Machine, plugins string) *appsv1.DaemonSet {
	label := map[string]string{"app": "flannel", "on": m.Name}
	folder := func(name, path string) v1.Volume {
		return v1.Volume{Name: name, VolumeSource: v1.VolumeSource{HostPath: &v1.HostPathVolumeSource{Path: path, Type: new(v1.HostPathDirectoryOrCreate)}}}
	}
	mount := func(name, path string) v1.VolumeMount { return v1.VolumeMount{Name: name, MountPath: path} }
	env := func(name, field string) v1.EnvVar {
		return v1.EnvVar{Name: name, ValueFrom: &v1.EnvVarSource{FieldRef: &v1.ObjectFieldSelector{FieldPath: field}}}
	}
	container := func(name string, command []string, mounts ...v1.VolumeMount) v1.Container {
		return v1.Container{Name: name, Image: image, ImagePullPolicy: v1.PullNever, Command: command, VolumeMounts: mounts}
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

// Install has flannel run on machines whose nodes have no network yet; its plugin goes to the folder plugins.
func Install(ctx context.Context, client kubernetes.Interface, machines []*cluster.Machine, plugins string) error {
	kube, rbac := client.CoreV1(), client.RbacV1()
	rule := func(resource string, verbs ...string) rbacv1.PolicyRule {
		return rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{resource}, Verbs: verbs}
	}
	name := metav1.ObjectMeta{Name: "flannel"}
	_, err := kube.ServiceAccounts(metav1.NamespaceSystem).Create(ctx, &v1.ServiceAccount{ObjectMeta: name}, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	_, err = rbac.ClusterRoles().Create(ctx, &rbacv1.ClusterRole{
		ObjectMeta: name, Rules: []rbacv1.PolicyRule{rule("pods", "get"), rule("nodes", "get", "list", "watch"), rule("nodes/status", "patch")},
	}, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	_, err = rbac.ClusterRoleBindings().Create(ctx, &rbacv1.ClusterRoleBinding{
		ObjectMeta: name, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "flannel"},
		Subjects: []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: metav1.NamespaceSystem, Name: "flannel"}},
	}, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	for _, m := range machines {
		data, err := config(m)
		if err != nil {
			return err
		}
		files := &v1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "flannel-" + m.Name}, Data: data}
		if _, err := kube.ConfigMaps(metav1.NamespaceSystem).Create(ctx, files, metav1.CreateOptions{}); err != nil {
			return err
		}
		if _, err := client.AppsV1().DaemonSets(metav1.NamespaceSystem).Create(ctx, daemonSet(m, plugins), metav1.CreateOptions{}); err != nil {
			return err
		}
	}
	return nil
}
