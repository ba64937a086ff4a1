package applications

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"wherry.dev/test/bench/inside"
)

// gone measures from when a pod is not Ready any more, as a watch tells, until its address is no longer
// among those to which the kernel sends a service's clients; and the whole way from the end of its
// process. The kernel itself tells of what is taken out of nftables' sets and maps, whoever does that. A
// rule that goes before the watch tells counts as 0.
func (b *bench) gone(ctx context.Context) ([]Samples, error) {
	if b.Kills == 0 {
		return nil, nil
	}
	known := Samples{Name: "pod not Ready → out of the service's rules (ms)", Target: "10"}
	whole := Samples{Name: "pod killed → out of the service's rules (ms)"}
	for i := range b.Kills {
		k, err := b.kill(ctx, fmt.Sprintf("kill-%d", i))
		if err != nil {
			return nil, err
		}
		known.Values = append(known.Values, ms(k.unready, k.removed))
		whole.Values = append(whole.Values, ms(k.killed, k.removed))
	}
	return []Samples{known, whole}, nil
}

// killed says when what happened to a pod.
type killed struct{ killed, unready, removed time.Time }

// kill makes a service with two pods, and kills one.
func (b *bench) kill(ctx context.Context, name string) (k killed, err error) {
	app, victim, other := map[string]string{"app": name}, name+"-victim", name+"-other"
	services, pods := b.client.CoreV1().Services(namespace), b.client.CoreV1().Pods(namespace)
	_, err = services.Create(ctx, &v1.Service{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1.ServiceSpec{
		Selector: app, Ports: []v1.ServicePort{{Port: 80, TargetPort: intstr.FromInt32(8080)}},
	}}, metav1.CreateOptions{})
	if err != nil {
		return k, err
	}
	changes, err := watchElements()
	if err != nil {
		return k, err
	}
	defer func() { err = errors.Join(err, changes.Close()) }()
	for _, pod := range []string{victim, other} {
		spec := podSpec(b.Image, inside.Loop(pod)...)
		spec.RestartPolicy = v1.RestartPolicyNever
		if _, err := pods.Create(ctx, &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: pod, Labels: app}, Spec: spec}, metav1.CreateOptions{}); err != nil {
			return k, err
		}
	}
	if _, err := b.await(ctx, "pods of "+name+" are not ready", func() bool { return b.ready(victim) && b.ready(other) }); err != nil {
		return k, err
	}
	addr, err := b.addressOf(victim)
	if err != nil {
		return k, err
	}
	last, err := b.addressOf(other)
	if err != nil {
		return k, err
	}
	if _, err := changes.await(unix.NFT_MSG_NEWSETELEM, addr, last); err != nil {
		return k, err
	}
	if k, err = b.strike(ctx, victim, addr, changes); err != nil {
		return k, err
	}
	return k, errors.Join(services.Delete(ctx, name, metav1.DeleteOptions{}),
		pods.Delete(ctx, victim, metav1.DeleteOptions{}), pods.Delete(ctx, other, metav1.DeleteOptions{}))
}

// strike kills the process of a pod, and waits for what follows.
func (b *bench) strike(ctx context.Context, pod string, addr netip.Addr, changes *elementWatch) (k killed, err error) {
	pid, err := inside.Process(pod)
	if err != nil {
		return k, err
	}
	type taken struct {
		at  time.Time
		err error
	}
	if err := changes.drain(); err != nil { // an element that got another place was taken out, too
		return k, err
	}
	out := make(chan taken, 1)
	go func() {
		at, err := changes.await(unix.NFT_MSG_DELSETELEM, addr)
		out <- taken{at, err}
	}()
	k.killed = time.Now()
	if err := unix.Kill(pid, unix.SIGKILL); err != nil {
		return k, errors.Join(err, changes.Close())
	}
	if k.unready, err = b.await(ctx, pod+" is still ready", func() bool { return !b.ready(pod) }); err != nil {
		return k, err
	}
	t := <-out
	k.removed = t.at
	return k, t.err
}

func (b *bench) addressOf(pod string) (netip.Addr, error) {
	p, err := b.f.Core().V1().Pods().Lister().Pods(namespace).Get(pod)
	if err != nil {
		return netip.Addr{}, err
	}
	return netip.ParseAddr(p.Status.PodIP)
}

// elementWatch hears of what becomes of the elements of nftables' sets and maps on this machine.
type elementWatch struct{ *os.File }

// watchElements joins the kernel's group of those who want to hear of changes to nftables.
func watchElements() (*elementWatch, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.NETLINK_NETFILTER)
	if err != nil {
		return nil, fmt.Errorf("netlink: %w", err)
	}
	w := &elementWatch{os.NewFile(uintptr(fd), "nftables")}
	const room = 8 << 20
	err = errors.Join(
		unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, room),
		unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}),
		unix.SetsockoptInt(fd, unix.SOL_NETLINK, unix.NETLINK_ADD_MEMBERSHIP, unix.NFNLGRP_NFTABLES),
	)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("watch nftables: %w", err), w.Close())
	}
	return w, nil
}

// await returns when changes of the kind were about elements that have each of the addresses in their keys or
// values.
func (w *elementWatch) await(kind uint16, all ...netip.Addr) (time.Time, error) {
	if err := w.SetReadDeadline(time.Now().Add(patience)); err != nil {
		return time.Time{}, err
	}
	buf := make([]byte, 1<<20)
	for {
		n, err := w.Read(buf)
		if err != nil {
			return time.Time{}, fmt.Errorf("nftables does not tell of %v: %w", all, err)
		}
		at := time.Now()
		if all = slices.DeleteFunc(all, func(a netip.Addr) bool { return tells(buf[:n], kind, a) }); len(all) == 0 {
			return at, nil
		}
	}
}

// drain forgets what has been told.
func (w *elementWatch) drain() error {
	if err := w.SetReadDeadline(time.Now().Add(time.Millisecond)); err != nil {
		return err
	}
	for buf := make([]byte, 1<<20); ; {
		if _, err := w.Read(buf); errors.Is(err, os.ErrDeadlineExceeded) {
			return nil
		} else if err != nil {
			return err
		}
	}
}

// tells reports whether there is a message of the kind about the address.
func tells(messages []byte, kind uint16, addr netip.Addr) bool {
	for len(messages) >= unix.SizeofNlMsghdr {
		size := int(binary.NativeEndian.Uint32(messages))
		if size < unix.SizeofNlMsghdr || size > len(messages) {
			return false
		}
		is := binary.NativeEndian.Uint16(messages[4:])
		if is == unix.NFNL_SUBSYS_NFTABLES<<8|kind && bytes.Contains(messages[unix.SizeofNlMsghdr:size], addr.AsSlice()) {
			return true
		}
		messages = messages[min(len(messages), (size+3)&^3):]
	}
	return false
}
