package applications

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"time"

	"github.com/miekg/dns"
	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// every is how often it is tried whether a service answers.
const every = 200 * time.Microsecond

// reachable measures from when a pod is Ready, as a watch tells, until another pod reaches it through
// its service's address, and until it finds it by its name.
func (b *bench) reachable(ctx context.Context) ([]Samples, error) {
	if b.Services == 0 {
		return nil, nil
	}
	const client = "bench-client"
	marked := podSpec(b.Image, loop)
	marked.Containers[0].Command = append(marked.Containers[0].Command, client)
	if _, err := b.client.CoreV1().Pods(namespace).Create(ctx, &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: client}, Spec: marked}, metav1.CreateOptions{}); err != nil {
		return nil, err
	}
	defer func() {
		_ = b.client.CoreV1().Pods(namespace).Delete(context.WithoutCancel(ctx), client, metav1.DeleteOptions{}) // what went wrong is told already
	}()
	if _, err := b.await(ctx, "the client is not ready", func() bool { return b.ready(client) }); err != nil {
		return nil, err
	}
	netns, err := netnsOf(client)
	if err != nil {
		return nil, err
	}
	byIP := Samples{Name: "Ready → reached through the cluster IP (ms)", Target: "10"}
	byName := Samples{Name: "Ready → reached by name (ms)", Target: "15"}
	for i := range b.Services {
		ip, name, err := b.oneService(ctx, netns, fmt.Sprintf("svc-%d", i))
		if err != nil {
			return nil, err
		}
		byIP.Values, byName.Values = append(byIP.Values, ip), append(byName.Values, name)
	}
	return []Samples{byIP, byName}, nil
}

func (b *bench) ready(pod string) bool {
	p, err := b.f.Core().V1().Pods().Lister().Pods(namespace).Get(pod)
	if err != nil {
		return false
	}
	for _, c := range p.Status.Conditions {
		if c.Type == v1.PodReady {
			return c.Status == v1.ConditionTrue
		}
	}
	return false
}

// oneService makes a service and a headless one, and then the pod behind both.
func (b *bench) oneService(ctx context.Context, netns, name string) (byIP, byName float64, err error) {
	app := map[string]string{"app": name}
	ports := []v1.ServicePort{{Port: 80, TargetPort: intstr.FromInt32(8080)}}
	services := b.client.CoreV1().Services(namespace)
	svc, err := services.Create(ctx, &v1.Service{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1.ServiceSpec{Selector: app, Ports: ports}}, metav1.CreateOptions{})
	if err != nil {
		return 0, 0, err
	}
	headless := name + "-each"
	if _, err := services.Create(ctx, &v1.Service{ObjectMeta: metav1.ObjectMeta{Name: headless}, Spec: v1.ServiceSpec{ClusterIP: v1.ClusterIPNone, Selector: app, Ports: ports}}, metav1.CreateOptions{}); err != nil {
		return 0, 0, err
	}
	dnsService, err := b.client.CoreV1().Services(metav1.NamespaceSystem).Get(ctx, "kube-dns", metav1.GetOptions{})
	if err != nil {
		return 0, 0, err
	}
	probing, stop := context.WithTimeout(ctx, patience)
	defer stop()
	answered := probe(probing, netns, func() bool { return connects(net.JoinHostPort(svc.Spec.ClusterIP, "80")) })
	resolved := probe(probing, netns, func() bool {
		return resolves(net.JoinHostPort(dnsService.Spec.ClusterIP, "53"), headless+"."+namespace+".svc.cluster.local.")
	})
	pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: app}, Spec: podSpec(b.Image, serve)}
	pod.Spec.Containers[0].ReadinessProbe = &v1.Probe{PeriodSeconds: 1, ProbeHandler: v1.ProbeHandler{TCPSocket: &v1.TCPSocketAction{Port: intstr.FromInt32(8080)}}}
	if _, err := b.client.CoreV1().Pods(namespace).Create(ctx, pod, metav1.CreateOptions{}); err != nil {
		return 0, 0, err
	}
	ready, err := b.await(ctx, "pod "+name+" is not ready", func() bool { return b.ready(name) })
	if err != nil {
		return 0, 0, err
	}
	a, r := <-answered, <-resolved
	if a.err != nil || r.err != nil {
		return 0, 0, errors.Join(a.err, r.err)
	}
	err = errors.Join(
		services.Delete(ctx, name, metav1.DeleteOptions{}), services.Delete(ctx, headless, metav1.DeleteOptions{}),
		b.client.CoreV1().Pods(namespace).Delete(ctx, name, metav1.DeleteOptions{}),
	)
	return ms(ready, a.at), ms(ready, r.at), err
}

type probed struct {
	at  time.Time
	err error
}

// probe tries, in a network namespace, until it works, and tells when that was.
func probe(ctx context.Context, netns string, works func() bool) <-chan probed {
	out := make(chan probed, 1)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread ends with the goroutine
		if err := enter(netns); err != nil {
			out <- probed{err: err}
			return
		}
		tick := time.NewTicker(every)
		defer tick.Stop()
		for !works() {
			select {
			case <-ctx.Done():
				out <- probed{err: fmt.Errorf("it never answered: %w", ctx.Err())}
				return
			case <-tick.C:
			}
		}
		out <- probed{at: time.Now()}
	}()
	return out
}

func enter(netns string) error {
	f, err := os.Open(netns)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	return unix.Setns(int(f.Fd()), unix.CLONE_NEWNET)
}

func connects(to string) bool {
	c, err := net.DialTimeout("tcp", to, time.Second) //nolint:noctx // on a thread of its own namespace
	if err != nil {
		return false
	}
	return c.Close() == nil
}

func resolves(server, name string) bool {
	c := dns.Client{Timeout: time.Second}
	m, _, err := c.Exchange(new(dns.Msg).SetQuestion(name, dns.TypeA), server)
	return err == nil && len(m.Answer) > 0
}

// netnsOf returns the network namespace of a pod on this machine.
func netnsOf(pod string) (string, error) {
	proc, err := processOf(pod)
	return filepath.Join(proc, "ns", "net"), err
}

// processOf returns the folder below /proc of a pod on this machine, found by its name in the command line
// of its first process.
func processOf(pod string) (string, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return "", err
	}
	for _, e := range entries {
		if _, err := strconv.Atoi(e.Name()); err != nil {
			continue
		}
		cmdline, err := os.ReadFile(filepath.Join("/proc", e.Name(), "cmdline"))
		if err == nil && strings.HasPrefix(string(cmdline), "sh\x00-c\x00"+loop+"\x00"+pod+"\x00") {
			return filepath.Join("/proc", e.Name()), nil
		}
	}
	return "", fmt.Errorf("pod %s does not run on this machine", pod)
}
