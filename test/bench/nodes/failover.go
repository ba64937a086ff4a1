package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"syscall"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"

	apinodes "wherry.dev/internal/api/nodes"
	"wherry.dev/internal/netns"
	"wherry.dev/test/bench/report"
	"wherry.dev/test/cluster"
)

// servers is how many of them a cluster has that loses one.
const servers = 3

// failover kills the server that a node is connected to, again and again, and has a pod made for that node by another one in
// the same moment. What more it takes than one before is how long the death was felt. If that server's etcd led, the write
// waits for another leader.
func failover(ctx context.Context, o options) ([]report.Row, error) {
	var calm []float64
	var felt, wrote struct{ follower, leader []float64 }
	err := o.with(ctx, servers+1, servers+1, servers, nil, func(b *bench) error {
		node := b.net.Machines[servers]
		for i := range 2 * o.rounds {
			victim, err := b.serverOf(node)
			if err != nil {
				return err
			}
			other := b.net.Machines[0]
			if other == victim {
				other = b.net.Machines[1]
			}
			c, err := other.Client()
			if err != nil {
				return err
			}
			led, err := leads(ctx, victim)
			if err != nil {
				return err
			}
			_, before, err := b.start(ctx, c, client(fmt.Sprintf("calm-%d", i), node))
			if err != nil {
				return err
			}
			pid, err := victim.PID()
			if err != nil {
				return err
			}
			if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
				return err
			}
			write, ready, err := b.start(ctx, c, client(fmt.Sprintf("felt-%d", i), node))
			if err != nil {
				return err
			}
			calm = append(calm, before)
			if led {
				felt.leader, wrote.leader = append(felt.leader, ready), append(wrote.leader, write)
			} else {
				felt.follower, wrote.follower = append(felt.follower, ready), append(wrote.follower, write)
			}
			if _, err := victim.Do(ctx, "up", "--detach", "--node-name", victim.Name); err != nil {
				return err
			}
			if err := b.whole(ctx, c); err != nil {
				return err
			}
		}
		return nil
	})
	return []report.Row{
		report.Of("pod made → Ready on a node, ms", "", calm),
		report.Of("the same, as the node's server is killed, ms", "≤ 1000", felt.follower),
		report.Of("of which the write at another server, ms", "", wrote.follower),
		report.Of("as the node's server is killed whose etcd leads, ms", "≤ 2000", felt.leader),
		report.Of("of which the write at another server, ms", "", wrote.leader),
	}, err
}

// leads reports whether the etcd of a server is the leader.
func leads(ctx context.Context, m *cluster.Machine) (bool, error) {
	members, err := m.Members(ctx)
	return slices.ContainsFunc(members, func(is cluster.Member) bool { return is.Leader && is.Name == m.Name }), err
}

// start makes a pod for a node by a server, without a scheduler, and returns how long the write took, and all until it was
// Ready, in ms. A write that fails is tried again, as clients do.
func (b *bench) start(ctx context.Context, c kubernetes.Interface, p *v1.Pod) (wrote, ready float64, err error) {
	p.Spec.NodeName, p.Spec.NodeSelector = p.Spec.NodeSelector[v1.LabelHostname], nil
	begun := time.Now()
	err = wait.PollUntilContextTimeout(ctx, every, patience, true, func(ctx context.Context) (bool, error) {
		_, err = c.CoreV1().Pods(namespace).Create(ctx, p, metav1.CreateOptions{})
		return err == nil || apierrors.IsAlreadyExists(err), nil // a write whose answer was lost may have been done
	})
	if err != nil {
		return 0, 0, err
	}
	wrote = ms(begun, time.Now())
	_, at, err := b.awaitReady(ctx, c, p.Name)
	return wrote, ms(begun, at), err
}

// serverOf returns the server that a node has the most connections with.
func (b *bench) serverOf(node *cluster.Machine) (*cluster.Machine, error) {
	var doc []byte
	err := netns.Do(func() (err error) {
		doc, err = os.ReadFile("/proc/thread-self/net/tcp")
		return err
	}, node.NetNS)
	if err != nil {
		return nil, err
	}
	var most *cluster.Machine
	number := 0
	for _, m := range b.net.Machines[:servers] {
		var ip [4]byte
		if _, err := fmt.Sscanf(m.Address, "%d.%d.%d.%d", &ip[0], &ip[1], &ip[2], &ip[3]); err != nil {
			return nil, err
		}
		// As the kernel writes a remote address, and that the connection is established.
		if n := strings.Count(string(doc), fmt.Sprintf(" %02X%02X%02X%02X:%04X 01 ", ip[3], ip[2], ip[1], ip[0], cluster.ServerPort)); n > number {
			most, number = m, n
		}
	}
	if most == nil {
		return nil, errors.New("the node is connected with no server")
	}
	return most, nil
}

// whole waits until all nodes are Ready, all etcds answer, and no pod of the benchmark is left.
func (b *bench) whole(ctx context.Context, c kubernetes.Interface) error {
	if err := c.CoreV1().Pods(namespace).DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{}); err != nil {
		return err
	}
	left := errors.New("nothing was looked at")
	err := wait.PollUntilContextTimeout(ctx, 500*time.Millisecond, patience, true, func(ctx context.Context) (bool, error) {
		left = b.missing(ctx, c)
		return left == nil, nil
	})
	if err != nil {
		return errors.Join(err, left)
	}
	return nil
}

// missing returns what keeps the cluster from being whole.
func (b *bench) missing(ctx context.Context, c kubernetes.Interface) error {
	nodes, err := c.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	for i := range nodes.Items {
		if !apinodes.IsReady(&nodes.Items[i]) {
			return fmt.Errorf("node %s is not Ready", nodes.Items[i].Name)
		}
	}
	pods, err := c.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	if n := len(pods.Items); n > 0 {
		return fmt.Errorf("%d pods are left", n)
	}
	for _, m := range b.net.Machines[:servers] { // each of them sees the others again
		members, err := m.Members(ctx)
		if err != nil {
			return err
		}
		for _, is := range members {
			if !is.Answers {
				return fmt.Errorf("%s does not hear the etcd of %s", m.Name, is.Name)
			}
		}
	}
	return nil
}
