package applications

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/vishvananda/netlink"
	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"

	"wherry.dev/internal/netns"
	"wherry.dev/internal/proxy"
)

// ServiceOptions say how many services the proxy has, and how often it is measured.
type ServiceOptions struct {
	Few, Many, Endpoints int
	Changes, Connections int
}

// DefaultServiceOptions measure for some seconds.
func DefaultServiceOptions() ServiceOptions {
	return ServiceOptions{Few: 10, Many: 10000, Endpoints: 5, Changes: 50, Connections: 3000}
}

// Services measures Wherry's service proxy alone, without a node and an API server: how soon a client
// notices that one service of many has got an endpoint, and what the first packet of a connection costs
// among few and among many. Each proxy has a machine in network namespaces: a host, a client, a server.
func Services(ctx context.Context, o ServiceOptions) (out []Samples, err error) {
	var labs []*lab
	defer func() {
		for _, l := range labs {
			err = errors.Join(err, l.close())
		}
	}()
	for _, n := range []int{o.Few, o.Many} {
		l, err := openLab(ctx, n, o.Endpoints)
		if l != nil {
			labs = append(labs, l)
		}
		if err != nil {
			return nil, fmt.Errorf("%d services: %w", n, err)
		}
	}
	changed := Samples{Name: fmt.Sprintf("change of one of %d services → reached (ms)", o.Many), Target: "20"}
	for range o.Changes {
		took, err := labs[1].change(ctx)
		if err != nil {
			return nil, err
		}
		changed.Values = append(changed.Values, took)
	}
	few, many, err := connectTimes(labs[0], labs[1], o.Connections)
	if err != nil {
		return nil, err
	}
	ratio := Samples{Name: "the same, compared (ratio of the medians)", Target: "1"}
	ratio.Values = []float64{median(many) / median(few)}
	return []Samples{
		changed,
		{Name: fmt.Sprintf("connect, %d services (µs)", o.Few), Values: few},
		{Name: fmt.Sprintf("connect, %d services (µs)", o.Many), Values: many},
		ratio,
	}, nil
}

func median(values []float64) float64 {
	sorted := slices.Sorted(slices.Values(values))
	return sorted[len(sorted)/2]
}

// connectTimes connects in turn, so that what else the machine does hits both alike.
func connectTimes(a, b *lab, n int) (few, many []float64, err error) {
	for range n {
		for _, at := range []struct {
			l   *lab
			out *[]float64
		}{{a, &few}, {b, &many}} {
			took, err := at.l.connect()
			if err != nil {
				return nil, nil, err
			}
			*at.out = append(*at.out, took)
		}
	}
	return few, many, nil
}

// lab is a proxy with its machine.
type lab struct {
	dir    string
	spaces map[string]string
	client kubernetes.Interface
	server net.Listener
	dials  chan dial
	stop   func() error
	slice  *discoveryv1.EndpointSlice // of the service that is measured
	to     string
}

// dial asks the client's thread, which stays in its namespace, for a connection.
type dial struct {
	to     string
	result chan<- dialed
}

type dialed struct {
	took time.Duration
	err  error
}

const (
	labService = "10.96.0.1"
	labPort    = 80
)

// openLab returns a lab also with an error, for close.
func openLab(ctx context.Context, services, endpoints int) (l *lab, err error) {
	l = &lab{spaces: map[string]string{}, to: net.JoinHostPort(labService, fmt.Sprint(labPort)), dials: make(chan dial)}
	l.stop = func() error { return nil }
	if l.dir, err = os.MkdirTemp("", "wherry-services-"); err != nil {
		return nil, err
	}
	for _, name := range []string{"host", "client", "server"} {
		dir := filepath.Join(l.dir, name)
		if err := netns.Create(dir, []netns.Kind{netns.Net}, nil); err != nil {
			return l, err
		}
		l.spaces[name] = netns.Path(dir, netns.Net)
	}
	if err := l.wire(); err != nil {
		return l, err
	}
	objects := []runtime.Object{&v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}}}
	for i := range services {
		svc, slice := labObjects(i, endpoints)
		objects = append(objects, svc, slice)
		if i == 0 {
			l.slice = slice
		}
	}
	l.client = fake.NewClientset(objects...)
	go l.dial()
	return l, l.run(ctx)
}

// labObjects returns service i with its endpoints. Only the first one's are a server that is there.
func labObjects(i, endpoints int) (*v1.Service, *discoveryv1.EndpointSlice) {
	name, ip := fmt.Sprintf("s%d", i), netip.AddrFrom4([4]byte{10, 96, byte((i + 1) >> 8), byte(i + 1)}).String()
	svc := &v1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}, Spec: v1.ServiceSpec{
		ClusterIP: ip, ClusterIPs: []string{ip}, Ports: []v1.ServicePort{{Port: labPort, Protocol: v1.ProtocolTCP}},
	}}
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: map[string]string{discoveryv1.LabelServiceName: name}},
		AddressType: discoveryv1.AddressTypeIPv4, Ports: []discoveryv1.EndpointPort{{Name: new(""), Port: new(int32(8080)), Protocol: new(v1.ProtocolTCP)}},
	}
	for j := range endpoints {
		at := netip.AddrFrom4([4]byte{10, byte(110 + j), byte(i >> 8), byte(i)})
		if i == 0 {
			at = netip.AddrFrom4([4]byte{10, 12, 0, byte(2 + j)})
		}
		slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{Addresses: []string{at.String()}})
	}
	return svc, slice
}

// wire connects client and server by the host: 10.11.0.2 and 10.12.0.2 to 10.12.0.254.
func (l *lab) wire() error {
	for _, w := range []struct{ name, host, own string }{{"client", "10.11.0.1/24", "10.11.0.2/24"}, {"server", "10.12.0.1/24", "10.12.0.2/24"}} {
		if err := l.cable(w.name, w.host, w.own); err != nil {
			return fmt.Errorf("connect the %s: %w", w.name, err)
		}
	}
	err := netns.Do(func() error { return os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0) }, l.spaces["host"])
	if err != nil {
		return err
	}
	return netns.Do(func() (err error) {
		l.server, err = net.Listen("tcp", ":8080") //nolint:noctx // closed by close
		return err
	}, l.spaces["server"])
}

func (l *lab) cable(name, host, own string) error {
	f, err := os.Open(l.spaces[name])
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	attrs := netlink.NewLinkAttrs()
	attrs.Name = "to-" + name
	err = netns.Do(func() error {
		return errors.Join(netlink.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: "eth0", PeerNamespace: netlink.NsFd(f.Fd())}), address(attrs.Name, host))
	}, l.spaces["host"])
	if err != nil {
		return err
	}
	return netns.Do(func() error {
		more := []string{own}
		if name == "server" {
			for i := 3; i < 12; i++ {
				more = append(more, fmt.Sprintf("10.12.0.%d/24", i))
			}
		}
		if err := address("eth0", more...); err != nil {
			return err
		}
		gateway, _, err := net.ParseCIDR(host)
		if err != nil {
			return err
		}
		return netlink.RouteAdd(&netlink.Route{Gw: gateway})
	}, l.spaces[name])
}

// address gives a link addresses, and starts it.
func address(link string, all ...string) error {
	at, err := netlink.LinkByName(link)
	if err != nil {
		return err
	}
	for _, a := range all {
		addr, err := netlink.ParseAddr(a)
		if err == nil {
			err = netlink.AddrAdd(at, addr)
		}
		if err != nil {
			return err
		}
	}
	return netlink.LinkSetUp(at)
}

// run starts server and proxy, and returns when the kernel has all services.
func (l *lab) run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	f := informers.NewSharedInformerFactory(l.client, 0)
	p, err := proxy.New(proxy.Config{Node: "n", Table: "wherry-bench-proxy"}, f)
	if err != nil {
		cancel()
		return err
	}
	ended, served := make(chan error, 1), make(chan struct{})
	f.Start(ctx.Done())
	go func() { ended <- netns.Do(func() error { return p.Run(ctx) }, l.spaces["host"]) }()
	go func() {
		defer close(served)
		for {
			c, err := l.server.Accept()
			if err != nil {
				return
			}
			_ = c.Close()
		}
	}()
	l.stop = func() error {
		cancel()
		f.Shutdown()
		err := errors.Join(l.server.Close(), <-ended)
		<-served
		return err
	}
	select {
	case <-p.Ready():
		return nil
	case <-time.After(patience):
		return errors.New("the proxy does not get ready")
	}
}

// dial connects for whoever asks, until nobody will any more.
func (l *lab) dial() {
	err := netns.Do(func() error {
		for d := range l.dials {
			start := time.Now()
			c, err := net.DialTimeout("tcp", d.to, time.Second) //nolint:noctx // on the thread of a namespace
			took := time.Since(start)
			if err == nil {
				err = c.Close()
			}
			d.result <- dialed{took, err}
		}
		return nil
	}, l.spaces["client"])
	if err != nil {
		for d := range l.dials {
			d.result <- dialed{err: err}
		}
	}
}

// connect returns how long a connection took, in µs.
func (l *lab) connect() (float64, error) {
	result := make(chan dialed, 1)
	l.dials <- dial{l.to, result}
	r := <-result
	return float64(r.took.Nanoseconds()) / 1000, r.err
}

// change takes the service's endpoints away, gives them back, and returns how long it took from then
// until a client gets through, in ms.
func (l *lab) change(ctx context.Context) (float64, error) {
	slices := l.client.DiscoveryV1().EndpointSlices(namespace)
	none := l.slice.DeepCopy()
	none.Endpoints = nil
	if _, err := slices.Update(ctx, none, metav1.UpdateOptions{}); err != nil {
		return 0, err
	}
	if err := l.await(ctx, false); err != nil {
		return 0, err
	}
	start := time.Now()
	if _, err := slices.Update(ctx, l.slice, metav1.UpdateOptions{}); err != nil {
		return 0, err
	}
	err := l.await(ctx, true)
	return ms(start, time.Now()), err
}

// await tries until connections get through, or do not any more.
func (l *lab) await(ctx context.Context, want bool) error {
	tick := time.NewTicker(every)
	defer tick.Stop()
	end := time.After(patience)
	for {
		if _, err := l.connect(); (err == nil) == want {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return ctx.Err()
		case <-end:
			return errors.New("a change of a service does not reach its clients")
		}
	}
}

func (l *lab) close() error {
	err := l.stop()
	close(l.dials)
	for name := range l.spaces {
		err = errors.Join(err, netns.Remove(filepath.Join(l.dir, name)))
	}
	return errors.Join(err, os.RemoveAll(l.dir))
}
