package volume

import (
	"context"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	authenticationv1 "k8s.io/api/authentication/v1"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"wherry.dev/internal/kubelet/criconfig"
	"wherry.dev/internal/mount"
)

// objs are the objects of a test.
type objs struct {
	cm     map[string]*v1.ConfigMap
	secret map[string]*v1.Secret
	claim  map[string]*v1.PersistentVolumeClaim
}

func (o objs) Claim(_, name string) (*v1.PersistentVolumeClaim, error) {
	if c := o.claim[name]; c != nil {
		return c, nil
	}
	return nil, apierrors.NewNotFound(schema.GroupResource{Resource: "persistentvolumeclaim"}, name)
}

func (o objs) ConfigMap(_, name string) (*v1.ConfigMap, error) {
	if c := o.cm[name]; c != nil {
		return c, nil
	}
	return nil, apierrors.NewNotFound(schema.GroupResource{Resource: "configmap"}, name)
}

func (o objs) Secret(_, name string) (*v1.Secret, error) {
	if s := o.secret[name]; s != nil {
		return s, nil
	}
	return nil, apierrors.NewNotFound(schema.GroupResource{Resource: "secret"}, name)
}

type oneToken struct{}

func (oneToken) Token(context.Context, *v1.Pod, *v1.ServiceAccountTokenProjection) (string, time.Time, error) {
	return "tok", time.Unix(1000, 0), nil
}

func (oneToken) Issue(_ context.Context, _ *v1.Pod, src *v1.ServiceAccountTokenProjection) (authenticationv1.TokenRequestStatus, error) {
	return authenticationv1.TokenRequestStatus{Token: "tok-" + src.Audience, ExpirationTimestamp: metav1.Unix(2000, 0)}, nil
}

func newMounter(t *testing.T, o objs) *Mounter {
	t.Helper()
	root := t.TempDir()
	t.Cleanup(func() {
		if err := mount.UnmountUnder(root); err != nil {
			t.Error(err)
		}
	})
	return &Mounter{
		Dirs: criconfig.Dirs{Root: root}, Objects: func(context.Context) Objects { return o }, Tokens: oneToken{}, NodeName: "n",
		Allocatable: func() v1.ResourceList { return v1.ResourceList{v1.ResourceCPU: resource.MustParse("4")} },
	}
}

func podWith(v v1.VolumeSource) *v1.Pod {
	return &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "ns", UID: "u", Labels: map[string]string{"b": "2", "a": "1"}},
		Spec: v1.PodSpec{
			Containers: []v1.Container{{Name: "c", VolumeMounts: []v1.VolumeMount{{Name: "v", MountPath: "/v"}}}},
			Volumes:    []v1.Volume{{Name: "v", VolumeSource: v}},
		},
	}
}

// set mounts the volume and returns its directory.
func set(t *testing.T, m *Mounter, pod *v1.Pod) string {
	t.Helper()
	if _, err := m.Mount(t.Context(), pod, "v"); err != nil {
		t.Fatal(err)
	}
	return pathOf(t, m, pod)
}

func pathOf(t *testing.T, m *Mounter, pod *v1.Pod) string {
	t.Helper()
	path, err := m.Path(pod, &pod.Spec.Volumes[0])
	if err != nil {
		t.Fatal(err)
	}
	return path
}

func want(t *testing.T, path, text string, mode os.FileMode) {
	t.Helper()
	got, err := os.ReadFile(path)
	if err != nil || string(got) != text {
		t.Errorf("%s: got %q, %v, want %q", path, got, err, text)
		return
	}
	info, err := os.Stat(path)
	if err != nil || info.Mode().Perm() != mode {
		t.Errorf("%s: mode %v, want %v", path, info.Mode(), mode)
	}
}

func TestConfigMapVolume(t *testing.T) {
	o := objs{cm: map[string]*v1.ConfigMap{"c": {Data: map[string]string{"a": "1", "b": "2"}, BinaryData: map[string][]byte{"bin": {0}}}}}
	m := newMounter(t, o)
	pod := podWith(v1.VolumeSource{ConfigMap: &v1.ConfigMapVolumeSource{LocalObjectReference: v1.LocalObjectReference{Name: "c"}, DefaultMode: ptr.To[int32](0o640)}})
	dir := set(t, m, pod)
	want(t, filepath.Join(dir, "a"), "1", 0o640)
	want(t, filepath.Join(dir, "bin"), "\x00", 0o640)
	before, err := os.Readlink(filepath.Join(dir, "..data"))
	if err != nil {
		t.Fatal(err)
	}
	set(t, m, pod)
	if now, err := os.Readlink(filepath.Join(dir, "..data")); err != nil || now != before {
		t.Error("the same content was written again")
	}
	o.cm["c"] = &v1.ConfigMap{Data: map[string]string{"a": "9"}}
	set(t, m, pod)
	want(t, filepath.Join(dir, "a"), "9", 0o640)
	if _, err := os.Lstat(filepath.Join(dir, "b")); !os.IsNotExist(err) {
		t.Error("b is still there")
	}
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != 3 { // a, ..data, its directory
		t.Errorf("%v, %v", entries, err)
	}
}

func TestItemsModesAndAbsence(t *testing.T) {
	o := objs{secret: map[string]*v1.Secret{"s": {Data: map[string][]byte{"k": []byte("x")}}}}
	m := newMounter(t, o)
	src := &v1.SecretVolumeSource{SecretName: "s", Items: []v1.KeyToPath{{Key: "k", Path: "deep/er/file", Mode: ptr.To[int32](0o400)}}}
	pod := podWith(v1.VolumeSource{Secret: src})
	pod.Spec.SecurityContext = &v1.PodSecurityContext{FSGroup: ptr.To[int64](4242)}
	dir := set(t, m, pod)
	want(t, filepath.Join(dir, "deep/er/file"), "x", 0o440)
	for path, mode := range map[string]uint32{
		"": unix.S_IFDIR | unix.S_ISGID | 0o777, dataLink: unix.S_IFDIR | unix.S_ISGID | 0o755, "deep/er": unix.S_IFDIR | unix.S_ISGID | 0o755,
		"deep/er/file": unix.S_IFREG | 0o440,
	} {
		var st unix.Stat_t
		if err := unix.Stat(filepath.Join(dir, path), &st); err != nil || st.Gid != 4242 || st.Mode != mode {
			t.Errorf("%q: gid %d, mode %o, %v", path, st.Gid, st.Mode, err)
		}
	}
	if ok, err := mount.Mounted(dir); err != nil || !ok {
		t.Error("a secret is not on tmpfs")
	}
	check := func(want string) {
		t.Helper()
		_, err := m.Mount(t.Context(), pod, "v")
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
	src.Items[0].Key = "no"
	check("references non-existent secret key: no")
	src.Items[0] = v1.KeyToPath{Key: "k", Path: "../x"}
	check("must be relative")
	src.SecretName = "none"
	check(`secret "none" not found`)
	src.Optional = new(true)
	check("")
}

func TestProjectedVolume(t *testing.T) {
	o := objs{cm: map[string]*v1.ConfigMap{"c": {Data: map[string]string{"ca.crt": "CA"}}}}
	m := newMounter(t, o)
	pod := podWith(v1.VolumeSource{Projected: &v1.ProjectedVolumeSource{DefaultMode: ptr.To[int32](0o644), Sources: []v1.VolumeProjection{
		{ServiceAccountToken: &v1.ServiceAccountTokenProjection{Path: "token"}},
		{ConfigMap: &v1.ConfigMapProjection{LocalObjectReference: v1.LocalObjectReference{Name: "c"}}},
		{DownwardAPI: &v1.DownwardAPIProjection{Items: []v1.DownwardAPIVolumeFile{
			{Path: "labels", FieldRef: &v1.ObjectFieldSelector{FieldPath: "metadata.labels"}},
			{Path: "cpu", ResourceFieldRef: &v1.ResourceFieldSelector{ContainerName: "c", Resource: "limits.cpu"}},
		}}},
	}}})
	refresh, err := m.Mount(t.Context(), pod, "v")
	if err != nil || refresh.Unix() != 1000 {
		t.Fatalf("%v, %v", refresh, err)
	}
	dir := pathOf(t, m, pod)
	want(t, filepath.Join(dir, "token"), "tok", 0o644)
	want(t, filepath.Join(dir, "ca.crt"), "CA", 0o644)
	want(t, filepath.Join(dir, "labels"), "a=\"1\"\nb=\"2\"", 0o644)
	want(t, filepath.Join(dir, "cpu"), "4", 0o644)
	pod.Spec.SecurityContext = &v1.PodSecurityContext{RunAsUser: ptr.To[int64](1000)}
	if _, err := m.Mount(t.Context(), pod, "v"); err != nil {
		t.Fatal(err)
	}
	want(t, filepath.Join(dir, "token"), "tok", 0o600)
}

func TestEmptyDir(t *testing.T) {
	m := newMounter(t, objs{})
	pod := podWith(v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{Medium: v1.StorageMediumMemory, SizeLimit: resource.NewQuantity(1<<20, resource.BinarySI)}})
	dir := set(t, m, pod)
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil || st.Type != unix.TMPFS_MAGIC || int64(st.Blocks)*st.Bsize != 1<<20 {
		t.Errorf("%+v, %v", st, err)
	}
	if info, err := os.Stat(dir); err != nil || info.Mode() != fs.ModeDir|fs.ModeSticky|0o777 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
	if err := os.WriteFile(filepath.Join(dir, "f"), []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	set(t, m, pod)
	want(t, filepath.Join(dir, "f"), "x", 0o600)
	disk := podWith(v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{}})
	disk.UID = "u2"
	disk.Spec.SecurityContext = &v1.PodSecurityContext{FSGroup: ptr.To[int64](7)}
	info, err := os.Stat(set(t, m, disk))
	if err != nil || info.Mode() != fs.ModeDir|fs.ModeSetgid|0o777 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
}

// TestMemoryWithoutALimit: it used to be half of the machine's memory, whatever pods may have.
func TestMemoryWithoutALimit(t *testing.T) {
	m := newMounter(t, objs{secret: map[string]*v1.Secret{"s": {Data: map[string][]byte{"k": []byte("x")}}}})
	m.Allocatable = func() v1.ResourceList { return v1.ResourceList{v1.ResourceMemory: resource.MustParse("8Mi")} }
	limit := func(q string) *v1.Pod {
		pod := podWith(v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{Medium: v1.StorageMediumMemory}})
		if q != "" {
			pod.Spec.Containers[0].Resources.Limits = v1.ResourceList{v1.ResourceMemory: resource.MustParse(q)}
		}
		return pod
	}
	own := limit("4Mi")
	own.Spec.Volumes[0].EmptyDir.SizeLimit = resource.NewQuantity(2<<20, resource.BinarySI)
	large := limit("")
	large.Spec.Volumes[0].EmptyDir.SizeLimit = resource.NewQuantity(1<<40, resource.BinarySI)
	for name, c := range map[string]struct {
		pod  *v1.Pod
		want int64
	}{
		"node": {limit(""), 8 << 20}, "pod": {limit("4Mi"), 4 << 20}, "more than the node": {limit("1Ti"), 8 << 20},
		"own": {own, 2 << 20}, "large": {large, 8 << 20},
		"secret": {podWith(v1.VolumeSource{Secret: &v1.SecretVolumeSource{SecretName: "s"}}), 8 << 20},
	} {
		c.pod.UID = types.UID(name)
		var st unix.Statfs_t
		if err := unix.Statfs(set(t, m, c.pod), &st); err != nil || int64(st.Blocks)*st.Bsize != c.want {
			t.Errorf("%s: %d bytes, want %d (%v)", name, int64(st.Blocks)*st.Bsize, c.want, err)
		}
	}
}

// TestHugePages: pages of the medium's size, or of the one that the pod requests.
func TestHugePages(t *testing.T) {
	m := newMounter(t, objs{})
	pages := func(medium v1.StorageMedium, sizes ...string) *v1.Pod {
		pod := podWith(v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{Medium: medium}})
		pod.UID = types.UID(strings.Join(append(sizes, string(medium)), "-"))
		pod.Spec.Containers[0].Resources.Requests = v1.ResourceList{}
		for _, s := range sizes {
			pod.Spec.Containers[0].Resources.Requests[v1.ResourceName("hugepages-"+s)] = resource.MustParse("1Gi")
		}
		return pod
	}
	for _, pod := range []*v1.Pod{pages(v1.StorageMediumHugePages, "2Mi"), pages("HugePages-2Mi", "2Mi", "1Gi")} {
		for range 2 {
			dir := set(t, m, pod)
			var st unix.Statfs_t
			if err := unix.Statfs(dir, &st); err != nil || st.Type != unix.HUGETLBFS_MAGIC || st.Bsize != 2<<20 {
				t.Errorf("%s: %+v, %v", pod.UID, st, err)
			}
			if info, err := os.Stat(dir); err != nil || info.Mode() != fs.ModeDir|0o777 {
				t.Errorf("%v, %v", info, err)
			}
		}
		if err := m.Clear(t.Context(), pod.UID); err != nil || m.Left(pod.UID) {
			t.Errorf("left behind: %v", err)
		}
	}
	for text, pod := range map[string]*v1.Pod{
		"multiple huge page sizes":           pages(v1.StorageMediumHugePages, "2Mi", "1Gi"),
		"no resource request for huge pages": pages("HugePages-1Gi", "2Mi"),
		"unknown storage medium":             pages("Tape"),
	} {
		if _, err := m.Mount(t.Context(), pod, "v"); err == nil || !strings.Contains(err.Error(), text) {
			t.Errorf("%v, want %q", err, text)
		}
	}
}

func TestHostPathTypes(t *testing.T) {
	m := newMounter(t, objs{})
	dir := t.TempDir()
	file := filepath.Join(dir, "f")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	sock := filepath.Join(dir, "s")
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Close(fd) }()
	if err := unix.Bind(fd, &unix.SockaddrUnix{Name: sock}); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		kind v1.HostPathType
		path string
		err  string
	}{
		{v1.HostPathUnset, "/nonexistent", ""},
		{v1.HostPathDirectory, dir, ""},
		{v1.HostPathDirectory, file, "hostPath type check failed: " + file + " is not a directory"},
		{v1.HostPathDirectory, "/nonexistent", "hostPath type check failed: /nonexistent is not a directory"},
		{v1.HostPathDirectoryOrCreate, filepath.Join(dir, "new"), ""},
		{v1.HostPathFile, file, ""},
		{v1.HostPathFile, dir, "is not a file"},
		{v1.HostPathFileOrCreate, filepath.Join(dir, "newfile"), ""},
		{v1.HostPathFileOrCreate, filepath.Join(dir, "no/newfile"), "no such file"},
		{v1.HostPathSocket, sock, ""},
		{v1.HostPathSocket, file, "is not a socket file"},
		{v1.HostPathCharDev, "/dev/null", ""},
		{v1.HostPathCharDev, file, "is not a character device"},
		{v1.HostPathBlockDev, "/dev/null", "is not a block device"},
		{"Nonsense", file, "invalid volume type"},
	} {
		_, err := m.Mount(t.Context(), podWith(v1.VolumeSource{HostPath: &v1.HostPathVolumeSource{Path: tc.path, Type: &tc.kind}}), "v")
		if tc.err == "" && err != nil || tc.err != "" && (err == nil || !strings.Contains(err.Error(), tc.err)) {
			t.Errorf("%s %s: got %v, want %q", tc.kind, tc.path, err, tc.err)
		}
	}
}

func TestOtherVolumesAreRefusedClearly(t *testing.T) {
	m := newMounter(t, objs{})
	for name, src := range map[string]v1.VolumeSource{
		"iscsi": {ISCSI: &v1.ISCSIVolumeSource{}}, "csi": {CSI: &v1.CSIVolumeSource{}}, "rbd": {RBD: &v1.RBDVolumeSource{}},
	} {
		if _, err := m.Mount(t.Context(), podWith(src), "v"); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func mounts(t *testing.T, m *Mounter, pod *v1.Pod) (string, error) {
	t.Helper()
	list, err := m.ContainerMounts(t.Context(), ContainerInput{
		Pod: pod, Container: &pod.Spec.Containers[0], Env: []criconfig.Env{{Name: "NAME", Value: "sub"}}, Hosts: []byte("hosts"),
	})
	if err != nil {
		return "", err
	}
	return list[0].HostPath, nil
}

func TestSubPath(t *testing.T) {
	m := newMounter(t, objs{})
	pod := podWith(v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{}})
	dir := set(t, m, pod)
	vm := &pod.Spec.Containers[0].VolumeMounts[0]
	vm.SubPathExpr = "a/$(NAME)"
	host, err := mounts(t, m, pod)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(host, "f"), []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	want(t, filepath.Join(dir, "a/sub/f"), "x", 0o600)
	if again, err := mounts(t, m, pod); err != nil || again != host {
		t.Errorf("a second time: %s, %v", again, err)
	}
	vm.SubPathExpr = "$(NO)"
	if _, err := mounts(t, m, pod); err == nil || !strings.Contains(err.Error(), "NO") {
		t.Errorf("a variable that is not there: %v", err)
	}
	vm.SubPathExpr, vm.SubPath = "", "../../etc"
	if _, err := mounts(t, m, pod); err == nil {
		t.Error("a path out of the volume was taken")
	}
}

// A container that may write to the volume plants symlinks that lead out of it.
func TestSubPathDoesNotFollowSymlinksOut(t *testing.T) {
	m := newMounter(t, objs{})
	pod := podWith(v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{}})
	dir := set(t, m, pod)
	outside := t.TempDir()
	if err := os.WriteFile(filepath.Join(outside, "secret"), []byte("host"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, target := range map[string]string{
		"abs": outside, "rel": "../../../../../../../../../../../.." + outside, "proc": "/proc/self/root" + outside,
	} {
		if err := os.Symlink(target, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
		pod.Spec.Containers[0].VolumeMounts[0].SubPath = name
		host, err := mounts(t, m, pod)
		if err != nil {
			continue // refused
		}
		if _, err := os.Stat(filepath.Join(host, "secret")); err == nil {
			t.Errorf("symlink %s -> %s leads out of the volume", name, target)
		}
	}
}

func TestClearLeavesNothingAndTouchesNobodyElse(t *testing.T) {
	m := newMounter(t, objs{secret: map[string]*v1.Secret{"s": {Data: map[string][]byte{"k": []byte("x")}}}})
	host := t.TempDir()
	pod := podWith(v1.VolumeSource{Secret: &v1.SecretVolumeSource{SecretName: "s"}})
	set(t, m, pod)
	hp := podWith(v1.VolumeSource{HostPath: &v1.HostPathVolumeSource{Path: host}})
	hp.Spec.Containers[0].VolumeMounts[0].SubPath = "sub"
	if _, err := mounts(t, m, hp); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(host, "sub/keep"), []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	if !m.Left(pod.UID) {
		t.Error("nothing is left, it says")
	}
	for range 2 {
		if err := m.Clear(t.Context(), pod.UID); err != nil {
			t.Fatal(err)
		}
	}
	if m.Left(pod.UID) {
		t.Error("something is left")
	}
	want(t, filepath.Join(host, "sub/keep"), "x", 0o600)
}

// A pod that filled the disk through its /etc/hosts or its termination messages used to keep that
// space until its object was deleted, and other pods were evicted for it.
func TestClearGivesBackWhatContainersWroteIntoOurFiles(t *testing.T) {
	m := newMounter(t, objs{})
	const uid = "u"
	words := m.Dirs.MessageFile(uid, "main", 0)
	for path, end := range map[string]string{m.Dirs.EtcHosts(uid): "", words: "the end"} {
		if err := os.MkdirAll(filepath.Dir(path), 0o750); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(strings.Repeat("x", 1<<20)+end), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if !m.Left(uid) {
		t.Error("nothing is left")
	}
	if err := m.Clear(t.Context(), uid); err != nil || m.Left(uid) {
		t.Errorf("%v, left: %v", err, m.Left(uid))
	}
	if _, err := os.Stat(m.Dirs.EtcHosts(uid)); !os.IsNotExist(err) {
		t.Errorf("/etc/hosts: %v", err)
	}
	if got, err := os.ReadFile(words); err != nil || len(got) != 4096 || !strings.HasSuffix(string(got), "xxthe end") {
		t.Errorf("%d bytes, %v", len(got), err)
	}
}
