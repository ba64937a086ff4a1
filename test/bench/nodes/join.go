package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"

	apinodes "wherry.dev/internal/api/nodes"
	apipods "wherry.dev/internal/api/pods"
	"wherry.dev/test/bench/inside"
	"wherry.dev/test/bench/report"
	"wherry.dev/test/cluster"
)

const (
	namespace = metav1.NamespaceDefault
	image     = "docker.io/library/busybox:1.36"
	port      = "8080"
	every     = 500 * time.Microsecond
	patience  = time.Minute
)

// client is a pod that waits for its end on a machine; server is one that answers at a port.
func client(name string, on *cluster.Machine) *v1.Pod { return pod(name, on, inside.Loop(name)...) }

func server(name string, on *cluster.Machine) *v1.Pod {
	return pod(name, on, "sh", "-c", "trap 'exit 0' TERM; mkdir /tmp/w; echo hi > /tmp/w/index.html; httpd -f -p "+port+" -h /tmp/w & wait")
}

func pod(name string, on *cluster.Machine, command ...string) *v1.Pod {
	return &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"app": name}}, Spec: v1.PodSpec{
		NodeSelector: map[string]string{v1.LabelHostname: on.Name}, TerminationGracePeriodSeconds: new(int64(1)),
		Containers: []v1.Container{{Name: "c", Image: image, ImagePullPolicy: v1.PullIfNotPresent, Command: command}},
	}}
}

// joins lets a node join, again and again, for which a pod waits already.
func joins(ctx context.Context, o options) ([]report.Row, error) {
	var ready, running, reached []float64
	err := o.with(ctx, 2, 1, 1, nil, func(b *bench) error {
		m := b.net.Machines[1]
		token, err := b.net.Machines[0].Do(ctx, "token", "create", "--ttl", "1h")
		if err != nil {
			return err
		}
		from := client("client", b.net.Machines[0])
		if _, _, err := b.runs(ctx, from); err != nil {
			return err
		}
		ns, err := inside.NetNS(from.Name)
		if err != nil {
			return err
		}
		for i := range o.rounds {
			first := server(fmt.Sprintf("first-%d", i), m)
			joined, ran, answered, err := b.join(ctx, m, token, first, ns)
			if err != nil {
				return err
			}
			ready, running, reached = append(ready, joined), append(running, ran), append(reached, answered)
			if err := b.deleted(ctx, first.Name); err != nil {
				return err
			}
			if _, err := m.Do(ctx, "down", "--leave", "--purge"); err != nil {
				return err
			}
			if err := addImage(m); err != nil {
				return err
			}
		}
		return nil
	})
	return []report.Row{
		report.Of("join → node Ready, ms", "≤ 1500", ready), report.Of("join → first pod Ready there, ms", "≤ 2000", running),
		report.Of("first pod Ready → reached from another node, ms", "≤ 100", reached),
	}, err
}

// join returns how long it took from the command until the node was Ready, and until the pod was; and from then
// until it was reached.
func (b *bench) join(ctx context.Context, m *cluster.Machine, token string, first *v1.Pod, from string) (ready, running, reached float64, err error) {
	pods, nodes := b.client.CoreV1().Pods(namespace), b.client.CoreV1().Nodes()
	if _, err := pods.Create(ctx, first, metav1.CreateOptions{}); err != nil {
		return 0, 0, 0, err
	}
	nodeReady := make(chan inside.Probed, 1)
	w, err := nodes.Watch(ctx, named(m.Name))
	if err != nil {
		return 0, 0, 0, err
	}
	go func() {
		nodeReady <- when(ctx, w, func(e watch.Event) bool {
			n, ok := e.Object.(*v1.Node)
			return ok && apinodes.IsReady(n)
		})
	}()
	start := time.Now()
	out := make(chan error, 1)
	go func() {
		_, err := m.Do(ctx, "join", b.net.Machines[0].Server(), "--token", strings.TrimSpace(token), "--detach", "--node-name", m.Name)
		out <- err
	}()
	p, at, err := b.awaitReady(ctx, b.client, first.Name)
	if err != nil {
		return 0, 0, 0, err
	}
	answered := <-b.reach(ctx, from, p.Status.PodIP)
	n, err := <-nodeReady, <-out
	for _, err := range []error{err, n.Err, answered.Err} {
		if err != nil {
			return 0, 0, 0, err
		}
	}
	return ms(start, n.At), ms(start, at), ms(at, answered.At), nil
}

func (b *bench) reach(ctx context.Context, from, ip string) <-chan inside.Probed {
	return inside.Probe(ctx, from, every, func() bool { return inside.Connects(net.JoinHostPort(ip, port), 50*time.Millisecond) })
}

func named(name string) metav1.ListOptions {
	return metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector(metav1.ObjectNameField, name).String()}
}

// when returns when a watch first tells of what is wanted, and ends the watch.
func when(ctx context.Context, w watch.Interface, wanted func(watch.Event) bool) inside.Probed {
	defer w.Stop()
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for {
		select {
		case e, ok := <-w.ResultChan():
			if !ok {
				return inside.Probed{Err: errors.New("the watch ended")}
			}
			if wanted(e) {
				return inside.Probed{At: time.Now()}
			}
		case <-ctx.Done():
			return inside.Probed{Err: ctx.Err()}
		}
	}
}

// runs creates a pod, and returns it and the time when it was Ready.
func (b *bench) runs(ctx context.Context, p *v1.Pod) (*v1.Pod, time.Time, error) {
	if _, err := b.client.CoreV1().Pods(namespace).Create(ctx, p, metav1.CreateOptions{}); err != nil {
		return nil, time.Time{}, err
	}
	return b.awaitReady(ctx, b.client, p.Name)
}

// awaitReady waits until a pod is Ready, as a client's watch tells.
func (b *bench) awaitReady(ctx context.Context, c kubernetes.Interface, name string) (p *v1.Pod, at time.Time, err error) {
	w, err := c.CoreV1().Pods(namespace).Watch(ctx, named(name))
	if err != nil {
		return nil, at, err
	}
	seen := when(ctx, w, func(e watch.Event) bool {
		o, ok := e.Object.(*v1.Pod)
		if !ok {
			return false
		}
		p = o
		_, ready := apipods.ReadySince(o)
		return ready
	})
	if seen.Err != nil {
		seen.Err = fmt.Errorf("pod %s is not Ready: %w", name, seen.Err)
	}
	return p, seen.At, seen.Err
}

// deleted deletes a pod, and waits until it is gone.
func (b *bench) deleted(ctx context.Context, name string) error {
	pods := b.client.CoreV1().Pods(namespace)
	w, err := pods.Watch(ctx, named(name))
	if err != nil {
		return err
	}
	if err := pods.Delete(ctx, name, metav1.DeleteOptions{}); err != nil {
		w.Stop()
		return err
	}
	gone := when(ctx, w, func(e watch.Event) bool { return e.Type == watch.Deleted })
	if gone.Err != nil {
		gone.Err = fmt.Errorf("pod %s is not gone: %w", name, gone.Err)
	}
	return gone.Err
}
