package e2e

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"wherry.dev/internal/cgroup"
	"wherry.dev/internal/mount"
	"wherry.dev/internal/pki"
	"wherry.dev/test/images"
	"wherry.dev/test/runtimes"
)

// parts is a node whose components are separate processes, as one would run them to swap some for
// their upstream counterparts: those whose paths are in $KUBELET, $APISERVER, $SCHEDULER,
// $CONTROLLER_MANAGER, $KUBE_PROXY and $CONTAINERD (or $CRIO, or $DOCKER).
type parts struct {
	*cluster
	dir     string
	apiPort string
	// endpoint of the CRI runtime
	endpoint string
	ca       *pki.CA
}

func TestEachComponentAlone(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	p := &parts{cluster: c, dir: filepath.Dir(c.data), apiPort: c.flags[3]}
	for _, d := range []string{c.data, c.run} {
		if err := os.MkdirAll(d, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	p.apiserver()
	stopFirst := p.scheduler()
	p.runtime()
	p.kubelet()
	stopFirstControllers := p.controllers()
	c.until("the namespace has a service account and the certificate authority", func() bool {
		_, errA := c.try("kubectl", "get", "serviceaccount", "default")
		_, errB := c.try("kubectl", "get", "configmap", "kube-root-ca.crt")
		return errA == nil && errB == nil
	})
	if os.Getenv("APISERVER") != "" && os.Getenv("CONTROLLER_MANAGER") == "" {
		c.kubectl("create", "configmap", "openshift-service-ca.crt", "--from-literal=service-ca.crt=") // OpenShift's build of upstream's adds it to each pod's token volume
	}
	c.podRunsLogsExecsAndGoes()
	c.initContainersRunInOrder()
	c.volumesAndEnvironment()
	c.restartPoliciesHold()
	c.probesDecide()
	c.terminationKeepsTheGracePeriod()
	c.rollsOutAndLeavesNothing("first")
	c.kindsOfWorkloadsRun()

	p.scheduler()
	stopFirst() // and hands its lease to the second
	c.create(busybox("later"))
	c.await("later", "ready", ready)
	c.delete("later")

	p.controllers()
	stopFirstControllers()
	c.rollsOutAndLeavesNothing("second")

	stopProxy := p.proxy()
	c.servicesWork()
	stopProxy()
}

// servicesWork has a client in a pod use a service whose pods come and go.
func (c *cluster) servicesWork() {
	c.t.Helper()
	c.kubectl("create", "deployment", "web", "--image", firstImage, "--replicas", "2", "--", "sh", "-c", hello)
	c.idle("client")
	ip, _ := c.expose()
	c.rolledOut()
	url := "http://" + ip
	c.until("both pods answer", func() bool { return len(c.answers(url, 12)) == 2 })
	c.comesAndGoes(url)
	c.kubectl("delete", "deployment/web", "service/web", "pod/client", "--timeout", fmt.Sprint(patience))
}

// proxy starts the service proxy, by flags that ours and upstream's share.
func (p *parts) proxy() (stop func()) {
	p.t.Helper()
	healthz, metrics := strconv.Itoa(freePort(p.t)), strconv.Itoa(freePort(p.t))
	program, cleanup := cmp.Or(os.Getenv("KUBE_PROXY"), p.wherry), []string{"--cleanup"}
	var args []string
	if program == p.wherry {
		table := fmt.Sprintf("wherry-e2e-%d", os.Getpid())
		args, cleanup = []string{"proxy", "--table", table}, []string{"proxy", "--table", table, "--cleanup"}
	}
	p.t.Cleanup(func() { // the rules stay when the proxy ends
		cmd := p.command(context.Background(), cleanup...)
		cmd.Path = program
		if out, err := cmd.CombinedOutput(); err != nil {
			p.t.Errorf("the proxy's rules stay: %v: %s", err, out)
		}
	})
	stop = p.startProgram(program, append(args, "--proxy-mode", "nftables", "--kubeconfig", p.kubeconfig("proxy", "system:kube-proxy"),
		"--hostname-override", "alone", "--healthz-bind-address", "127.0.0.1:"+healthz, "--metrics-bind-address", "127.0.0.1:"+metrics,
		"--conntrack-max-per-core", "0", "--conntrack-min", "0", // the machine's connection tracking is not the test's
		"--conntrack-tcp-timeout-established", "0s", "--conntrack-tcp-timeout-close-wait", "0s")...)
	p.until("the proxy is not healthy", func() bool { return strings.Contains(p.plain(healthz, "/healthz"), `"nodeEligible":true`) })
	for path, want := range map[string]string{
		"/healthz": "ok", "/proxyMode": "nftables", "/configz": `"mode":"nftables"`, "/metrics": "kubeproxy_sync_proxy_rules_duration_seconds",
	} {
		p.until(path+" has "+want, func() bool { return strings.Contains(p.plain(metrics, path), want) })
	}
	return stop
}

// plain returns what a server on loopback answers; nothing, as long as it is not there.
func (p *parts) plain(port, path string) string {
	p.t.Helper()
	resp, err := http.Get("http://127.0.0.1:" + port + path) //nolint:noctx // loopback
	if err != nil {
		return ""
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		p.t.Error(err)
	}
	return string(body)
}

// rollsOutAndLeavesNothing creates a Deployment, and deletes it with all that was made for it.
func (c *cluster) rollsOutAndLeavesNothing(name string) {
	c.t.Helper()
	c.kubectl("create", "deployment", name, "--image", firstImage, "--replicas", "2", "--", "sh", "-c", loop)
	c.kubectl("rollout", "status", "deployment/"+name, "--timeout", fmt.Sprint(patience))
	c.kubectl("delete", "deployment", name, "--cascade=foreground", "--timeout", fmt.Sprint(patience))
	c.until("everything of "+name+" is gone", func() bool {
		return c.kubectl("get", "pods,replicasets", "-l", "app="+name, "-o", "name") == ""
	})
}

// kindsOfWorkloadsRun sees a job through, and a StatefulSet behind a service from its start to its end.
func (c *cluster) kindsOfWorkloadsRun() {
	c.t.Helper()
	job := runsOnce(2, 2, "echo $JOB_COMPLETION_INDEX")
	job.CompletionMode = new(batchv1.IndexedCompletion)
	c.createJob("indexed", job)
	if st := c.jobIs("indexed", batchv1.JobComplete).Status; st.Succeeded != 2 || st.CompletedIndexes != "0,1" {
		c.t.Errorf("indexed: %+v", st)
	}
	c.kubectl("apply", "-f", c.file(webOf("StatefulSet", "replicas: 2, serviceName: web")))
	c.kubectl("apply", "-f", c.file("{apiVersion: v1, kind: Service, metadata: {name: web}, spec: {clusterIP: None, selector: {app: web}, ports: [{port: 80}]}}"))
	c.rollsOut("statefulset/web", "roll out complete")
	ready := func() (names []string) {
		list, err := c.client.DiscoveryV1().EndpointSlices(metav1.NamespaceDefault).List(c.t.Context(),
			metav1.ListOptions{LabelSelector: discoveryv1.LabelServiceName + "=web"})
		if err != nil {
			c.t.Fatal(err)
		}
		for _, slice := range list.Items {
			for _, e := range slice.Endpoints {
				if *e.Conditions.Ready {
					names = append(names, e.TargetRef.Name)
				}
			}
		}
		return names
	}
	c.until("both pods are behind the service", func() bool {
		names := ready()
		slices.Sort(names)
		return slices.Equal(names, []string{"web-0", "web-1"})
	})
	c.kubectl("scale", "statefulset", "web", "--replicas", "0")
	c.until("no pod is behind the service", func() bool { return len(ready()) == 0 })
	c.kubectl("delete", "statefulset,service,job", "--all", "--timeout", fmt.Sprint(patience))
	c.until("no pod is left", func() bool { return c.kubectl("get", "pods", "-o", "name") == "" })
}

// controllers starts another controller manager.
func (p *parts) controllers() (stop func()) {
	p.t.Helper()
	port := strconv.Itoa(freePort(p.t))
	kubeconfig := p.kubeconfig("controllers", "system:kube-controller-manager")
	program := cmp.Or(os.Getenv("CONTROLLER_MANAGER"), p.wherry)
	var verb []string
	if program == p.wherry {
		verb = []string{"controller-manager"}
	}
	stop = p.startProgram(program, append(verb, "--secure-port", port, "--bind-address", "127.0.0.1",
		"--kubeconfig", kubeconfig, "--authentication-kubeconfig", kubeconfig, "--authorization-kubeconfig", kubeconfig,
		"--use-service-account-credentials", "--root-ca-file", p.ca.CertFile,
		"--cluster-signing-cert-file", p.ca.CertFile, "--cluster-signing-key-file", p.ca.KeyFile)...)
	get := p.insecure(port)
	p.until("the controller manager is not healthy", func() bool { return get("/healthz") == http.StatusOK })
	return stop
}

// scheduler starts another scheduler, with its own health and metrics endpoint.
func (p *parts) scheduler() (stop func()) {
	p.t.Helper()
	port := strconv.Itoa(freePort(p.t))
	kubeconfig := p.kubeconfig("scheduler", "system:kube-scheduler")
	program := cmp.Or(os.Getenv("SCHEDULER"), p.wherry)
	var verb []string
	if program == p.wherry {
		verb = []string{"scheduler"}
	}
	stop = p.startProgram(program, append(verb, "--secure-port", port, "--bind-address", "127.0.0.1",
		"--kubeconfig", kubeconfig, "--authentication-kubeconfig", kubeconfig, "--authorization-kubeconfig", kubeconfig)...)
	get := p.insecure(port)
	p.until("the scheduler is not healthy", func() bool { return get("/healthz") == http.StatusOK })
	for _, path := range []string{"/metrics", "/configz", "/debug/scheduler/pods/x"} {
		if code := get(path); code != http.StatusForbidden {
			p.t.Errorf("%s for anybody: %d", path, code)
		}
	}
	return stop
}

// start runs a component of ours until the test ends.
func (p *parts) start(args ...string) {
	p.t.Helper()
	p.startProgram(p.wherry, args...)
}

// startProgram runs a program until stop, or the end of the test, stops it with SIGTERM.
func (p *parts) startProgram(path string, args ...string) (stop func()) {
	p.t.Helper()
	log, err := os.CreateTemp(p.dir, "*.log")
	if err != nil {
		p.t.Fatal(err)
	}
	cmd := p.command(context.Background(), args...)
	cmd.Path = path
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		p.t.Fatal(err)
	}
	stop = sync.OnceFunc(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM) // it may have ended by itself; Wait shows
		err := cmd.Wait()
		_ = log.Close()
		if err != nil && !endedBy(cmd, syscall.SIGTERM) {
			p.t.Errorf("%s %s: %v", filepath.Base(path), args[0], err)
		}
		if p.t.Failed() {
			if text, err := os.ReadFile(log.Name()); err == nil {
				p.t.Logf("%s %s:\n%s", filepath.Base(path), args[0], text[max(0, len(text)-4000):])
			}
		}
	})
	p.t.Cleanup(stop)
	return stop
}

// endedBy reports whether a program passed the signal on to itself in the end, as etcd does.
func endedBy(cmd *exec.Cmd, sig syscall.Signal) bool {
	ws, ok := cmd.ProcessState.Sys().(syscall.WaitStatus)
	return ok && ws.Signaled() && ws.Signal() == sig
}

// anyDisk makes kubelets ignore how full the machine's disk is: for it they would evict pods, and remove images that no
// registry has.
var anyDisk = []string{"--eviction-hard=memory.available<100Mi", "--image-gc-high-threshold=100"}

func (p *parts) apiserver() {
	p.t.Helper()
	pool := filepath.Join(p.data, "pki")
	if path := os.Getenv("APISERVER"); path != "" {
		p.upstreamAPIServer(path, pool)
	} else {
		p.start("apiserver", "--data-dir", p.data, "--secure-port", p.apiPort, "--service-cluster-ip-range", p.flags[9],
			"--kubelet-preferred-address-types", "InternalIP", // the machine's name need not be resolvable
			"--disable-admission-plugins", "TaintNodesByCondition") // only a controller removes that taint
	}
	get := p.insecure(p.apiPort)
	p.until("the API server is not ready", func() bool { return get("/readyz") == http.StatusOK })
	var err error
	if p.ca, err = pki.LoadOrCreateCA(pool, "ca", "", time.Now()); err != nil {
		p.t.Fatal(err)
	}
	admin := p.kubeconfig("admin", "admin", "system:masters")
	if err := os.Rename(admin, filepath.Join(p.data, "kubeconfig")); err != nil {
		p.t.Fatal(err)
	}
	cfg, err := clientcmd.BuildConfigFromFlags("", filepath.Join(p.data, "kubeconfig"))
	if err != nil {
		p.t.Fatal(err)
	}
	if p.client, err = kubernetes.NewForConfig(cfg); err != nil {
		p.t.Fatal(err)
	}
}

// insecure queries a server on loopback whose certificate authority is not known (yet), and returns
// the status; 0 means no answer.
func (p *parts) insecure(port string) (get func(path string) int) {
	client := &http.Client{Transport: &http.Transport{
		TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, //nolint:gosec // see above
	}}
	p.t.Cleanup(client.CloseIdleConnections)
	return func(path string) int {
		resp, err := client.Get("https://127.0.0.1:" + port + path)
		if err != nil {
			return 0
		}
		_ = resp.Body.Close()
		return resp.StatusCode
	}
}

// kubeconfig writes one for a user whose certificate the API server's CA signs.
func (p *parts) kubeconfig(name, user string, groups ...string) string {
	p.t.Helper()
	cert, key, err := p.ca.Issue(filepath.Join(p.dir, "certs"), name, pki.Leaf{CommonName: user, Organizations: groups, Client: true}, time.Now())
	if err != nil {
		p.t.Fatal(err)
	}
	cfg := clientcmdapi.NewConfig()
	cfg.Clusters["c"] = &clientcmdapi.Cluster{Server: "https://127.0.0.1:" + p.apiPort, CertificateAuthority: p.ca.CertFile}
	cfg.AuthInfos["u"] = &clientcmdapi.AuthInfo{ClientCertificate: cert, ClientKey: key}
	cfg.Contexts["x"] = &clientcmdapi.Context{Cluster: "c", AuthInfo: "u"}
	cfg.CurrentContext = "x"
	path := filepath.Join(p.dir, name+".conf")
	if err := clientcmd.WriteToFile(*cfg, path); err != nil {
		p.t.Fatal(err)
	}
	return path
}

func (p *parts) runtime() {
	p.t.Helper()
	if p.other != nil {
		p.addImage("busybox.tar", images.SaveBusybox)
		p.endpoint = p.other.Endpoint
		return
	}
	file := filepath.Join(p.dir, "busybox.tar")
	if err := images.SaveBusybox(file); err != nil {
		p.t.Fatal(err)
	}
	r, err := runtimes.Wherry(p.t.Context(), runtimes.WherryOptions{Path: p.wherry, Archives: []string{file}})
	if err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(func() {
		if p.t.Failed() {
			p.t.Logf("wherry cri:\n%s", r.Log())
		}
		if err := r.Close(context.Background()); err != nil {
			p.t.Errorf("wherry cri: %v", err)
		}
	})
	p.endpoint = r.Endpoint
}

func fileExists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// machineIP returns the source address of packets to other machines; none is sent.
func (p *parts) machineIP() net.IP {
	p.t.Helper()
	conn, err := net.Dial("udp", "192.0.2.1:9")
	if err != nil {
		p.t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	return conn.LocalAddr().(*net.UDPAddr).IP
}

// kubelet starts one, with flags that win over the usual ones, and returns what stops it before the test ends.
func (p *parts) kubelet(flags ...string) (stop func()) {
	p.t.Helper()
	group := fmt.Sprintf("wherry-kl%x", os.Getpid()%0xfffff)
	upstream, ip := os.Getenv("KUBELET"), net.ParseIP("127.0.0.1")
	if upstream != "" {
		ip = p.machineIP() // it accepts no loopback address
	}
	cert, key, err := p.ca.Issue(filepath.Join(p.dir, "certs"), "kubelet", pki.Leaf{CommonName: "system:node:alone", Server: true, IPs: []net.IP{ip}}, time.Now())
	if err != nil {
		p.t.Fatal(err)
	}
	config := filepath.Join(p.dir, "kubelet.yaml")
	text := fmt.Sprintf(`apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
port: %s
healthzPort: 0
tlsCertFile: %s
tlsPrivateKeyFile: %s
cgroupRoot: /%s
podLogsDir: %s
authentication:
  x509: {clientCAFile: %s}
`, p.flags[5], cert, key, group, filepath.Join(p.dir, "logs"), p.ca.CertFile)
	if upstream != "" {
		text += upstreamOnly
	}
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		p.t.Fatal(err)
	}
	args := []string{"--kubeconfig", p.kubeconfig("node", "system:node:alone", "system:nodes"), "--config", config,
		"--hostname-override", "alone", "--node-ip", ip.String(), "--root-dir", filepath.Join(p.dir, "kubelet"),
		"--container-runtime-endpoint", p.endpoint}
	args = append(args, anyDisk...)
	args = append(args, flags...)
	p.t.Cleanup(func() {
		// what a failure has left running is removed, too
		if err := errors.Join(cgroup.Kill("/"+group), cgroup.Remove("/"+group), mount.UnmountUnder(filepath.Join(p.dir, "kubelet"))); err != nil {
			p.t.Errorf("what the kubelet left: %v", err)
		}
	})
	if upstream == "" {
		stop = p.startProgram(p.wherry, append([]string{"kubelet", "--container-logs-dir", ""}, args...)...)
	} else {
		p.upstreamKubelet(upstream, group, args)
	}
	p.until("the node is not Ready", func() bool {
		n, err := p.client.CoreV1().Nodes().Get(p.t.Context(), "alone", metav1.GetOptions{})
		if err != nil {
			return false
		}
		for _, c := range n.Status.Conditions {
			if c.Type == "Ready" {
				return c.Status == "True"
			}
		}
		return false
	})
	return stop
}
