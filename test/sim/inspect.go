package sim

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"wherry.dev/internal/api/pods"
	"wherry.dev/internal/kubelet/criconfig"
	"wherry.dev/internal/kubelet/objectcache"
	"wherry.dev/test/fakecri"
)

const (
	clusterDNS    = "10.96.0.10"
	clusterDomain = "cluster.local"
	serviceIP     = "10.96.0.5"
)

// known returns a pod of this life as it came; the fields that are inspected never change.
func (l *life) known(uid string) *v1.Pod {
	pod, _ := l.pods.Load(types.UID(uid))
	p, _ := pod.(*v1.Pod)
	return p
}

// know remembers a pod that has come, and why the node will refuse it.
func (l *life) know(pod *v1.Pod, refusal string) {
	l.pods.Store(pod.UID, pod.DeepCopy())
	if refusal != "" {
		l.refusals.Store(pod.UID, refusal)
	}
}

// refusal returns why the node refuses a pod; empty if it does not.
func (l *life) refusal(uid types.UID) string {
	reason, _ := l.refusals.Load(uid)
	text, _ := reason.(string)
	return text
}

// refusalOf returns what a refused pod is told for a reason: for a critical one without room, the
// node has looked for others to evict.
func refusalOf(pod *v1.Pod, reason string) string {
	if reason == "OutOfcpu" && pods.IsCritical(pod) {
		return "UnexpectedAdmissionError"
	}
	return reason
}

// inspectSandbox checks the configuration that a sandbox is made from.
func (l *life) inspectSandbox(cfg *runtimeapi.PodSandboxConfig, handler string) error {
	pod := l.known(cfg.Metadata.Uid)
	if pod == nil {
		return nil
	}
	if reason := l.refusal(pod.UID); reason != "" {
		return fmt.Errorf("a sandbox is made for %s, which is refused for %s", pod.UID, reason)
	}
	for _, c := range []struct {
		what       string
		want, have any
	}{
		{"hostname", hostnameOf(pod), cfg.Hostname},
		{"runtime handler", handlerOf(pod), handler},
		{"memory of its overhead", pod.Spec.Overhead.Memory().Value(), cfg.GetLinux().GetOverhead().GetMemoryLimitInBytes()},
		{"host ports", hostPortsOf(pod), mapped(cfg)},
		{"sysctls", len(sysctlsOf(pod)), len(cfg.GetLinux().GetSysctls())},
		{"shared processes", pod.Spec.ShareProcessNamespace != nil, cfg.GetLinux().GetSecurityContext().GetNamespaceOptions().GetPid() == runtimeapi.NamespaceMode_POD},
		{"own users", pod.Spec.HostUsers != nil, len(cfg.GetLinux().GetSecurityContext().GetNamespaceOptions().GetUsernsOptions().GetUids()) > 0},
		{"name servers", serversOf(pod), strings.Join(cfg.GetDnsConfig().GetServers(), " ")},
	} {
		if c.want != c.have {
			return fmt.Errorf("a sandbox of %s is made with %s %v, not %v", pod.UID, c.what, c.have, c.want)
		}
	}
	return nil
}

func hostnameOf(pod *v1.Pod) string {
	switch s := &pod.Spec; {
	case s.HostNetwork:
		return ""
	case s.SetHostnameAsFQDN != nil && *s.SetHostnameAsFQDN:
		return s.Hostname + "." + s.Subdomain + ".ns.svc." + clusterDomain
	case s.Hostname != "":
		return s.Hostname
	default:
		return pod.Name
	}
}

func handlerOf(pod *v1.Pod) string {
	switch c := pod.Spec.RuntimeClassName; {
	case c == nil:
		return ""
	case *c == classOrphan:
		return classOrphan
	default:
		return handlerFast
	}
}

func hostPortsOf(pod *v1.Pod) string {
	var out []string
	for i := range pod.Spec.Containers {
		for _, p := range pod.Spec.Containers[i].Ports {
			out = append(out, fmt.Sprint(p.HostPort))
		}
	}
	return strings.Join(out, " ")
}

func mapped(cfg *runtimeapi.PodSandboxConfig) string {
	var out []string
	for _, p := range cfg.PortMappings {
		out = append(out, fmt.Sprint(p.HostPort))
	}
	return strings.Join(out, " ")
}

func sysctlsOf(pod *v1.Pod) []v1.Sysctl {
	if pod.Spec.SecurityContext == nil {
		return nil
	}
	return pod.Spec.SecurityContext.Sysctls
}

func serversOf(pod *v1.Pod) string {
	servers := []string{clusterDNS}
	switch p := pod.Spec.DNSPolicy; {
	case p == v1.DNSNone:
		servers = nil
	case p == v1.DNSDefault, p == v1.DNSClusterFirst && pod.Spec.HostNetwork:
		servers = []string{"127.0.0.1"} // the node has no resolv.conf
	}
	if c := pod.Spec.DNSConfig; c != nil {
		servers = append(servers, c.Nameservers...)
	}
	return strings.Join(servers, " ")
}

// inspectContainer checks the configuration that an instance is made from.
func (l *life) inspectContainer(cfg *runtimeapi.ContainerConfig, uid string) error {
	pod := l.known(uid)
	if pod == nil {
		return nil
	}
	c := pods.FindContainer(pod, cfg.Metadata.Name)
	if c == nil {
		return nil // ephemeral
	}
	if image := cfg.GetImage().GetUserSpecifiedImage(); image == imagePrivate && !l.open && !l.entitled(pod) {
		return fmt.Errorf("%s is created from %s, which its pod may not use", c.Name, image)
	}
	if want, has := pod.Spec.SecurityContext.RunAsUser, cfg.GetLinux().GetSecurityContext().GetRunAsUser(); want != nil && has.GetValue() != *want {
		return fmt.Errorf("%s is created to run as %v, not as %d", c.Name, has, *want)
	}
	if signal := cfg.StopSignal == runtimeapi.Signal_SIGNAL_SIGUSR1; signal != (c.Lifecycle != nil && c.Lifecycle.StopSignal != nil) {
		return fmt.Errorf("%s is created with the stop signal %s", c.Name, cfg.StopSignal)
	}
	for _, m := range cfg.Mounts {
		if m.HostPath == "" {
			continue
		}
		if _, err := os.Stat(m.HostPath); err != nil {
			return fmt.Errorf("what %s has at %s is not there: %w", c.Name, m.ContainerPath, err)
		}
		if m.ContainerPath == "/etc/hosts" && len(pod.Spec.HostAliases) > 0 {
			if text, err := os.ReadFile(m.HostPath); err != nil || !strings.Contains(string(text), pod.Spec.HostAliases[0].Hostnames[0]) {
				return fmt.Errorf("/etc/hosts of %s lacks its aliases: %q, %w", c.Name, text, err)
			}
		}
	}
	return l.inspectEnvironment(pod, c, cfg)
}

// freshness returns how old the kubelet's knowledge of an object may be: older while watches and
// calls hang.
func (l *life) freshness() time.Duration {
	if since := l.calmSince.Load(); since != 0 && time.Since(dawn)-time.Duration(since) > 10*time.Minute {
		return 2 * time.Minute
	}
	return 15 * time.Minute
}

// inspectEnvironment checks that there was a moment, not long ago, at which the objects held what a
// container has in its environment.
func (l *life) inspectEnvironment(pod *v1.Pod, c *v1.Container, cfg *runtimeapi.ContainerConfig) error {
	have := map[string]string{}
	for _, e := range cfg.Envs {
		if _, twice := have[e.Key]; twice {
			return fmt.Errorf("%s has %s twice in its environment", c.Name, e.Key)
		}
		have[e.Key] = string(e.Value)
	}
	links := have["DB_SERVICE_HOST"] == serviceIP
	if want := pod.Spec.EnableServiceLinks != nil && *pod.Spec.EnableServiceLinks; links != want {
		return fmt.Errorf("%s has links to services: %t, in spite of enableServiceLinks %t", c.Name, links, want)
	}
	maps.DeleteFunc(have, func(name, _ string) bool { return strings.HasPrefix(name, "DB_") || name == "CPUS" })
	refs := objectcache.Refs(&v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace}, Spec: v1.PodSpec{Containers: []v1.Container{{EnvFrom: c.EnvFrom, Env: c.Env}}}})
	chosen := map[objectcache.Ref]map[string]string{}
	var try func(int) bool
	try = func(i int) bool {
		if i == len(refs) {
			want, possible := environmentOf(pod, c, chosen)
			return possible && maps.Equal(want, have)
		}
		return slices.ContainsFunc(l.objects.since(refs[i], time.Now().Add(-l.freshness())), func(data map[string]string) bool {
			chosen[refs[i]] = data
			return try(i + 1)
		})
	}
	if try(0) {
		return nil
	}
	return fmt.Errorf("the environment of %s is not what the objects said at any time in the last %v: %v", c.Name, l.freshness(), have)
}

// environmentOf returns what a container's environment must be, given the objects; false if there
// can be none. It relies on what the generator can draw.
func environmentOf(pod *v1.Pod, c *v1.Container, has map[objectcache.Ref]map[string]string) (map[string]string, bool) {
	env := map[string]string{}
	for _, f := range c.EnvFrom {
		data, optional := map[string]string(nil), false
		if s := f.ConfigMapRef; s != nil {
			data, optional = has[ref(objectcache.ConfigMap, s.Name)], *s.Optional
		} else {
			data, optional = has[ref(objectcache.Secret, f.SecretRef.Name)], *f.SecretRef.Optional
		}
		if data == nil && !optional {
			return nil, false
		}
		for k, v := range data {
			env[f.Prefix+k] = v
		}
	}
	for _, e := range c.Env {
		value, found, possible := variableOf(pod, &e, has)
		if !possible {
			return nil, false
		}
		if found {
			env[e.Name] = value
		}
		if e.Name == "ALL" {
			env[e.Name] = "<" + expanded(env, "CONFIG") + "|" + expanded(env, "PRE_key") + "|$(SECRET)|" + expanded(env, "SECRET") + ">"
		}
	}
	return env, true
}

func expanded(env map[string]string, name string) string {
	if v, ok := env[name]; ok {
		return v
	}
	return "$(" + name + ")"
}

// variableOf returns the value of one variable that comes from elsewhere.
func variableOf(pod *v1.Pod, e *v1.EnvVar, has map[objectcache.Ref]map[string]string) (value string, found, possible bool) {
	from := e.ValueFrom
	if from == nil {
		return "", false, true
	}
	key := func(ref objectcache.Ref, key string, optional bool) (string, bool, bool) {
		v, ok := has[ref][key]
		return v, ok, ok || optional
	}
	switch {
	case from.ConfigMapKeyRef != nil:
		return key(ref(objectcache.ConfigMap, from.ConfigMapKeyRef.Name), from.ConfigMapKeyRef.Key, *from.ConfigMapKeyRef.Optional)
	case from.SecretKeyRef != nil:
		return key(ref(objectcache.Secret, from.SecretKeyRef.Name), from.SecretKeyRef.Key, *from.SecretKeyRef.Optional)
	case from.FileKeyRef != nil:
		return "from a file", true, true
	case from.FieldRef != nil && from.FieldRef.FieldPath == "metadata.uid":
		return string(pod.UID), true, true
	case from.FieldRef != nil:
		return pod.Name, true, true
	default:
		return "", false, true // limits.cpu: does not depend on the objects
	}
}

// writeEnvFile is what init container i0 does.
func (l *life) writeEnvFile(uid string) {
	dir := filepath.Join(l.dir, "kubelet", "pods", uid, "volumes", "kubernetes.io~empty-dir", "empty")
	if _, err := os.Stat(dir); err != nil {
		return // the pod has none
	}
	file := filepath.Join(dir, envFile)
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		l.hist.fail(err)
	}
	l.hist.fail(os.WriteFile(file, []byte("# by i0\n"+envFileKey+"='from a file'\n"), 0o644))
}

// lastWords returns what an instance leaves in its termination message.
func lastWords(name string, attempt uint32, code int32) string {
	return fmt.Sprintf("%s/%d ended with %d", name, attempt, code)
}

// lastWordsPolicy makes every second container of a kind leave its last words in its log when it
// fails.
func lastWordsPolicy(name string) v1.TerminationMessagePolicy {
	if strings.HasSuffix(name, "1") {
		return v1.TerminationMessageFallbackToLogsOnError
	}
	return v1.TerminationMessageReadFile
}

// writeMessage does what an instance does before it ends.
func (l *life) writeMessage(c *fakecri.Change) {
	file := filepath.Join(l.dir, "kubelet", "pods", c.UID, "containers", c.Name, fmt.Sprint(c.Attempt))
	if _, err := os.Stat(file); err != nil {
		return
	}
	words := lastWords(c.Name, c.Attempt, c.Code)
	if pod := l.known(c.UID); lastWordsPolicy(c.Name) == v1.TerminationMessageFallbackToLogsOnError && c.Code != 0 && pod != nil {
		file = filepath.Join(criconfig.LogDir(filepath.Join(l.dir, "logs"), pod), criconfig.LogPath(c.Name, c.Attempt))
		words = dawn.Format(time.RFC3339Nano) + " stderr P " + words + "\n"
		l.hist.fail(os.MkdirAll(filepath.Dir(file), 0o755))
	}
	l.hist.fail(os.WriteFile(file, []byte(words), 0o666))
}

// shown checks that volumes hold what their objects hold, and a token that is valid.
func (l *life) shown(pod *v1.Pod) error {
	volumes := filepath.Join(l.dir, "kubelet", "pods", string(pod.UID), "volumes")
	for i := range pod.Spec.Volumes {
		v := &pod.Spec.Volumes[i]
		var err error
		switch {
		case v.ConfigMap != nil:
			err = l.showsAll(filepath.Join(volumes, "kubernetes.io~configmap", v.Name), ref(objectcache.ConfigMap, v.ConfigMap.Name))
		case v.Secret != nil:
			err = l.showsAll(filepath.Join(volumes, "kubernetes.io~secret", v.Name), ref(objectcache.Secret, v.Secret.SecretName))
		case v.Projected != nil:
			err = l.showsToken(filepath.Join(volumes, "kubernetes.io~projected", v.Name), pod)
		}
		if err != nil {
			return fmt.Errorf("volume %s: %w", v.Name, err)
		}
	}
	return nil
}

func (l *life) showsAll(dir string, ref objectcache.Ref) error {
	want, _ := l.objects.now(ref)
	have := map[string]string{}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), "..") {
			continue
		}
		text, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err != nil {
			return err
		}
		have[e.Name()] = string(text)
	}
	if !maps.Equal(want, have) {
		return fmt.Errorf("it shows %v, and %s holds %v", have, ref, want)
	}
	return nil
}

func (l *life) showsToken(dir string, pod *v1.Pod) error {
	text, err := os.ReadFile(filepath.Join(dir, "token"))
	if err != nil {
		return err
	}
	var uid string
	var until int64
	if _, err := fmt.Sscanf(string(text), tokenForm, &uid, &until); err != nil {
		return fmt.Errorf("token %q: %w", text, err)
	}
	if uid != string(pod.UID) || time.Unix(until, 0).Before(time.Now()) {
		return fmt.Errorf("token %q is of another pod, or no good since %v", text, time.Unix(until, 0))
	}
	two, err := os.ReadFile(filepath.Join(dir, "two"))
	if data, _ := l.objects.now(ref(objectcache.ConfigMap, configTwo)); err != nil || string(two) != data[keyAlways] {
		return fmt.Errorf("it shows %q where the object holds %q: %w", two, data[keyAlways], err)
	}
	return nil
}
