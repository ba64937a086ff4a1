package applications

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/miekg/dns"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"wherry.dev/test/bench/inside"
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
	marked := podSpec(b.Image, inside.Loop(client)...)
	if _, err := b.client.CoreV1().Pods(namespace).Create(ctx, &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: client}, Spec: marked}, metav1.CreateOptions{}); err != nil {
		return nil, err
	}
	defer func() {
		_ = b.client.CoreV1().Pods(namespace).Delete(context.WithoutCancel(ctx), client, metav1.DeleteOptions{}) // what went wrong is told already
	}()
	if _, err := b.await(ctx, "the client is not ready", func() bool { return b.ready(client) }); err != nil {
		return nil, err
	}
	netns, err := inside.NetNS(client)
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
	answered := inside.Probe(probing, netns, every, func() bool { return inside.Connects(net.JoinHostPort(svc.Spec.ClusterIP, "80"), time.Second) })
	resolved := inside.Probe(probing, netns, every, func() bool {
		return resolves(net.JoinHostPort(dnsService.Spec.ClusterIP, "53"), headless+"."+namespace+".svc.cluster.local.")
	})
	pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: app}, Spec: podSpec(b.Image, "sh", "-c", serve)}
	pod.Spec.Containers[0].ReadinessProbe = &v1.Probe{PeriodSeconds: 1, ProbeHandler: v1.ProbeHandler{TCPSocket: &v1.TCPSocketAction{Port: intstr.FromInt32(8080)}}}
	if _, err := b.client.CoreV1().Pods(namespace).Create(ctx, pod, metav1.CreateOptions{}); err != nil {
		return 0, 0, err
	}
	ready, err := b.await(ctx, "pod "+name+" is not ready", func() bool { return b.ready(name) })
	if err != nil {
		return 0, 0, err
	}
	a, r := <-answered, <-resolved
	if a.Err != nil || r.Err != nil {
		return 0, 0, errors.Join(a.Err, r.Err)
	}
	err = errors.Join(
		services.Delete(ctx, name, metav1.DeleteOptions{}), services.Delete(ctx, headless, metav1.DeleteOptions{}),
		b.client.CoreV1().Pods(namespace).Delete(ctx, name, metav1.DeleteOptions{}),
	)
	return ms(ready, a.At), ms(ready, r.At), err
}

func resolves(server, name string) bool {
	c := dns.Client{Timeout: time.Second}
	m, _, err := c.Exchange(new(dns.Msg).SetQuestion(name, dns.TypeA), server)
	return err == nil && len(m.Answer) > 0
}
