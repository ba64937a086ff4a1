package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"wherry.dev/internal/cgroup"
	"wherry.dev/internal/mount"
	"wherry.dev/test/cluster"
	"wherry.dev/test/runtimes"
)

// Upstream's tests of the kubelet (e2e_node.test) run beside it, rewrite its configuration, and stop and start it as a unit of
// systemd. So it is a process of its own here, on our container runtime and below a server of ours, on machines
// made of network namespaces; and programs called sudo and systemctl, which only these tests find, do what they ask for.

// kubeletRoot is where the tests look for the kubelet's folder, and fixed are this and others, whatever they are told.
const kubeletRoot = "/var/lib/kubelet"

var fixed = []string{kubeletRoot, "/var/log/pods", "/var/log/containers"}

// podsGroup is the cgroup of all pods, where the tests look for it.
const podsGroup = "/kubepods"

// kubelet is the kubelet of a node that consists of single processes.
type kubelet struct {
	server  *cluster.Machine
	machine *cluster.Machine // has the kubelet, the runtime and the tests
	runtime *runtimes.Runtime
	dir     string // the folder in which the tests run
	token   string // of an administrator
}

// service starts and stops the kubelet. It is called with the folder, what to do, and then the kubelet's command.
const service = `#!/bin/sh
dir=$1 what=$2
shift 2
stop() {
	[ -f "$dir/pid" ] || return 0
	pid=$(cat "$dir/pid")
	kill "$pid" 2>/dev/null
	n=0
	while kill -0 "$pid" 2>/dev/null && [ "$n" -lt 300 ]; do sleep 0.1; n=$((n + 1)); done
	kill -9 "$pid" 2>/dev/null
	rm -f "$dir/pid"
}
stop
if [ "$what" = start ]; then
	setsid "$@" >>"$dir/kubelet.log" 2>&1 </dev/null &
	echo $! >"$dir/pid"
fi
`

// systemctl is the part of systemctl's that the tests need. %s is the command of the service, without what to do.
const systemctl = `#!/bin/sh
case "$1" in
list-units) echo "kubelet-conformance.service loaded active running" ;;
reset-failed) ;;
start | restart) exec %[1]s start %[2]s ;;
stop | kill) exec %[1]s stop ;;
*) echo "systemctl $*: only what the tests of the kubelet need is here" >&2; exit 1 ;;
esac
`

// kubeletConfig is what the tests find; they change it. The disk of the machine may be as full as it likes.
const kubeletConfig = `apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
serverTLSBootstrap: true
rotateCertificates: true
readOnlyPort: 10255
staticPodPath: %[1]s/manifests
clusterDNS: [10.96.0.10]
clusterDomain: cluster.local
containerRuntimeEndpoint: %[2]s
authentication: {x509: {clientCAFile: %[3]s}, anonymous: {enabled: false}, webhook: {enabled: true}}
authorization: {mode: Webhook}
evictionHard: {memory.available: 100Mi}
evictionPressureTransitionPeriod: 30s
imageGCHighThresholdPercent: 100
failSwapOn: false
failCgroupV1: false
`

// runtimeConfig has the handler that the tests of RuntimeClasses ask for.
const runtimeConfig = "runtimes: {test-handler: {path: %s, type: crun}}\n"

// pieces starts a server, a container runtime and a kubelet, and returns when the node is Ready.
func (n *node) pieces(ctx context.Context) (err error) {
	for _, dir := range fixed {
		if has, err := os.ReadDir(dir); len(has) > 0 || err != nil && !errors.Is(err, fs.ErrNotExist) {
			return errors.Join(fmt.Errorf("%s is not empty: these tests are for a machine without another kubelet", dir), err)
		}
	}
	if n.network, err = cluster.New(ctx, n.dir, n.wherry, 2, 0); err != nil {
		return err
	}
	server, m := n.network.Machines[0], n.network.Machines[1]
	k := &kubelet{server: server, machine: m, dir: filepath.Join(n.dir, "tests"), token: "administrator"}
	n.kubelet = k
	for _, dir := range []string{filepath.Join(k.dir, "bin"), filepath.Join(k.dir, "manifests"), kubeletRoot} {
		if err := os.MkdirAll(dir, 0o711); err != nil {
			return err
		}
	}
	if err := n.serveRegistries(ctx, m); err != nil {
		return err
	}
	tokens := filepath.Join(n.dir, "tokens")
	if err := os.WriteFile(tokens, []byte(k.token+",administrator,administrator,system:masters\n"), 0o600); err != nil {
		return err
	}
	// The tests expect pods without a volume for a token, as with their own API server.
	if _, err := server.Do(ctx, "up", "--detach", "--role", "server", "--apiserver-arg", "token-auth-file="+tokens,
		"--apiserver-arg", "disable-admission-plugins=ServiceAccount,TaintNodesByCondition",
		// Nor do they expect taints that follow from a node's conditions.
		"--controller-manager-arg", "controllers=*,-node-lifecycle-controller"); err != nil {
		return err
	}
	crun, err := exec.LookPath("crun")
	if err != nil {
		return err
	}
	handlers := filepath.Join(n.dir, "runtimes.yaml")
	if err := os.WriteFile(handlers, fmt.Appendf(nil, runtimeConfig, crun), 0o600); err != nil {
		return err
	}
	k.runtime, err = runtimes.Wherry(ctx, runtimes.WherryOptions{
		Path: n.wherry, Range: "kubelet", NetNS: m.NetNS, Env: n.registries.Env(os.Environ()), Config: handlers,
	})
	if err != nil {
		return err
	}
	if err := k.configure(ctx, n.wherry); err != nil {
		return err
	}
	return k.start(ctx)
}

// configure writes the files of the kubelet, and the programs with which the tests stop and start it.
func (k *kubelet) configure(ctx context.Context, wherry string) error {
	m, file := k.machine, func(name string) string { return filepath.Join(k.dir, name) }
	token, err := k.server.Do(ctx, "token", "create", "--ttl", "24h")
	if err != nil {
		return err
	}
	id, secret, _ := strings.Cut(strings.TrimSpace(token), ".")
	secret, _, _ = strings.Cut(secret, ".")
	ca := filepath.Join(k.server.Data, "pki", "ca.crt")
	bootstrap := clientcmdapi.NewConfig()
	bootstrap.Clusters["c"] = &clientcmdapi.Cluster{Server: k.server.Server(), CertificateAuthority: ca}
	bootstrap.AuthInfos["u"] = &clientcmdapi.AuthInfo{Token: id + "." + secret}
	bootstrap.Contexts["x"] = &clientcmdapi.Context{Cluster: "c", AuthInfo: "u"}
	bootstrap.CurrentContext = "x"
	command := []string{
		"nsenter", "--net=" + m.NetNS, "--", wherry, "kubelet", "--config", file("kubelet-config"), "--root-dir", kubeletRoot,
		"--bootstrap-kubeconfig", file("bootstrap.conf"), "--kubeconfig", file("kubelet.conf"), "--cert-dir", file("pki"),
		"--hostname-override", m.Name, "--node-ip", m.Address,
	}
	return errors.Join(
		clientcmd.WriteToFile(*bootstrap, file("bootstrap.conf")),
		os.WriteFile(file("kubelet-config"), fmt.Appendf(nil, kubeletConfig, k.dir, k.runtime.Endpoint, ca), 0o600),
		os.WriteFile(file("system-spec"), []byte("os: Linux\n"), 0o600),
		os.WriteFile(file("service"), []byte(service), 0o700), //nolint:gosec // programs
		os.WriteFile(file("bin/sudo"), []byte("#!/bin/sh\nexec \"$@\"\n"), 0o700),
		os.WriteFile(file("bin/systemctl"), fmt.Appendf(nil, systemctl, file("service")+" "+k.dir, strings.Join(command, " ")), 0o700),
	)
}

// start starts the kubelet, and waits until its node is Ready.
func (k *kubelet) start(ctx context.Context) error {
	if out, err := exec.CommandContext(ctx, filepath.Join(k.dir, "bin/systemctl"), "start").CombinedOutput(); err != nil {
		return fmt.Errorf("start the kubelet: %w: %s", err, out)
	}
	client, err := k.server.Client()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, time.Minute, fmt.Errorf("the node is not Ready; %s has the kubelet's log", k.log()))
	defer cancel()
	for {
		node, err := client.CoreV1().Nodes().Get(ctx, k.machine.Name, metav1.GetOptions{})
		if err == nil {
			for _, c := range node.Status.Conditions {
				if c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue {
					return nil
				}
			}
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(100 * time.Millisecond):
		}
	}
}

func (k *kubelet) log() string { return filepath.Join(k.dir, "kubelet.log") }

// flags are those of the test program.
func (k *kubelet) flags() []string {
	return []string{
		"--host=" + k.server.Server(), "--bearer-token=" + k.token, "--node-name=" + k.machine.Name, "--prepull-images=false",
		"--dns-domain=cluster.local",
		"--start-services=false", "--stop-services=false", "--system-spec-file=" + filepath.Join(k.dir, "system-spec"),
		"--container-runtime-endpoint=" + k.runtime.Endpoint, "--image-service-endpoint=" + k.runtime.Endpoint,
	}
}

// close stops the kubelet and the runtime, and removes what they leave.
func (k *kubelet) close(ctx context.Context) error {
	errs := []error{}
	if _, err := os.Stat(filepath.Join(k.dir, "service")); err == nil {
		errs = append(errs, exec.CommandContext(ctx, filepath.Join(k.dir, "service"), k.dir, "stop").Run())
	}
	if k.runtime != nil {
		errs = append(errs, k.runtime.Close(ctx))
	}
	errs = append(errs, cgroup.Kill(podsGroup), cgroup.Remove(podsGroup))
	for _, dir := range fixed {
		errs = append(errs, mount.RemoveTree(dir))
	}
	return errors.Join(errs...)
}
