package daemon

import (
	"cmp"
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	clientset "k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	watchtools "k8s.io/client-go/tools/watch"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"

	"wherry.dev/internal/api/cluster"
	"wherry.dev/internal/cgroup"
	"wherry.dev/internal/cni"
	"wherry.dev/internal/config"
	"wherry.dev/internal/disk"
	"wherry.dev/internal/kubelet"
	kubeletconfig "wherry.dev/internal/kubelet/config"
	"wherry.dev/internal/kubelet/oom"
	"wherry.dev/internal/mount"
	"wherry.dev/internal/pki"
)

func (d *Daemon) startKubelet(ctx context.Context) error {
	d.progress("starting the kubelet")
	cfg, err := d.kubeletConfig(time.Now())
	if err != nil {
		return err
	}
	client, _, err := d.as(nodeUser(d.cfg.NodeName), nodesGroup)
	if err != nil {
		return err
	}
	groups, err := cgroup.System()
	if err != nil {
		return err
	}
	if cfg.NoClusterDNS {
		klog.FromContext(ctx).Info("The cluster has no DNS (--dns=none): pods with dnsPolicy ClusterFirst get the node's resolv.conf")
	}
	deps := kubelet.Deps{
		Client: client, Runtime: d.runtime, Images: d.imageService, Cgroups: groups, WatchMemory: cgroup.WatchMemory, Share: mount.Share, KernelLog: oom.KernelLog,
		Trace:       func(uid string) (any, bool) { return d.traces.Pod(uid) },
		Annotations: d.annotations(),
	}
	if d.disk != nil {
		deps.Volumes = d.disk
	}
	d.node, err = kubelet.New(cfg, deps)
	if err != nil {
		return err
	}
	d.group.start(ctx, "kubelet", d.node.Run)
	if d.networkMissing() {
		// Who installs one needs the API server, and pods for it perhaps.
		d.Missing = "it has no network: install one, whose configuration goes to " + d.cfg.CNIConfDir
		return d.await(ctx, "the node's registration", d.node.Registered())
	}
	if err := d.await(ctx, "the node", d.node.Ready()); err != nil {
		return err
	}
	awaitTaint(ctx, client, d.cfg.NodeName)
	return nil
}

// annotations are what this node says of itself: where its disk is, and its key.
func (d *Daemon) annotations() map[string]string {
	all := map[string]string{cluster.AnnotationVolumes: cluster.NoVolumes}
	if d.disk != nil {
		all[cluster.AnnotationVolumes] = d.disk.Root()
	}
	if d.key != (wgtypes.Key{}) {
		all[cluster.AnnotationWireGuard] = d.key.PublicKey().String()
	}
	return all
}

// networkMissing reports whether somebody else's network is to be used, and is not there yet.
func (d *Daemon) networkMissing() bool {
	return d.cfg.NetworkMode == cluster.ModeNone && d.cfg.RuntimeEndpoint == "" && !cni.Configured(d.cfg.CNIConfDir)
}

// taintPatience bounds how long a start waits for the node to be untainted: it may be tainted for a reason.
const taintPatience = 5 * time.Second

// awaitTaint waits until the node, which is ready, has lost the taint of those that are not: before that, the
// first pods are told that there is no node for them.
func awaitTaint(ctx context.Context, client clientset.Interface, node string) {
	ctx, cancel := context.WithTimeout(ctx, taintPatience)
	defer cancel()
	self := fields.OneTermEqualSelector(metav1.ObjectNameField, node).String()
	lw := cache.ToListWatcherWithWatchListSemantics(&cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			o.FieldSelector = self
			return client.CoreV1().Nodes().List(ctx, o)
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			o.FieldSelector = self
			return client.CoreV1().Nodes().Watch(ctx, o)
		},
	}, client)
	_, err := watchtools.UntilWithSync(ctx, lw, &v1.Node{}, nil, func(ev watch.Event) (bool, error) {
		n, ok := ev.Object.(*v1.Node)
		return ok && !slices.ContainsFunc(n.Spec.Taints, func(t v1.Taint) bool { return t.Key == v1.TaintNodeNotReady }), nil
	})
	if err != nil {
		klog.FromContext(ctx).Info("The node is ready and still has the taint of one that is not", "node", node, "err", err)
	}
}

func (d *Daemon) kubeletConfig(now time.Time) (c kubeletconfig.Config, err error) {
	c = kubeletconfig.Default()
	c.NodeName, c.NodeIP = d.cfg.NodeName, d.cfg.NodeIP
	if c.CloudProvider = d.cfg.CloudProvider; c.CloudProvider != "" {
		c.NodeIP = d.cfg.GivenNodeIP() // the cloud chooses among those that it knows
	}
	c.RootDir = kubeletDir(d.cfg.DataDir)
	c.PodLogsDir, c.ContainerLogsDir = d.cfg.PodLogsDir, containerLogsDir(&d.cfg)
	c.StaticPodPath = d.cfg.ManifestDir
	c.Address, c.Port = d.cfg.BindAddress, int32(d.cfg.KubeletPort)
	// Only /configz reads this: the kubelet already has its runtime.
	c.ContainerRuntimeEndpoint = cmp.Or(d.cfg.RuntimeEndpoint, "unix://"+d.cfg.CRISocket())
	c.HealthzPort = ptr.To[int32](0) // the API server's /readyz and the node's lease show health
	c.CgroupRoot = d.cfg.CgroupRoot()
	servers, err := d.clusterDNS()
	if err != nil {
		return c, err
	}
	c.ClusterDomain, c.ClusterDNS = d.cfg.ClusterDomain, servers
	c.NoClusterDNS = len(c.ClusterDNS) == 0 // reported once, not with each pod
	c.RegistryPullQPS = new(int32(0))       // pulls run in parallel here, and none is refused
	c.FailSwapOn = new(false)               // a laptop's swap is no reason not to start; pods do not use it
	if err := diskThresholds(&c); err != nil {
		return c, err
	}
	c.PodPidsLimit = &d.cfg.PodMaxPids
	c.SeccompDefault = &d.cfg.SeccompDefault
	c.MaxPods = int32(d.cfg.MaxPods)
	if d.cfg.OwnRange() {
		c.PodCIDR = d.cfg.PodCIDR // one that has joined is given its range
	}
	c.NodeLabels = map[string]string{}
	for _, l := range d.cfg.NodeLabels {
		key, value, ok := strings.Cut(l, "=")
		if !ok {
			return c, fmt.Errorf("--node-labels %q: want key=value", l)
		}
		c.NodeLabels[key] = value
	}
	if err := d.kubeletIdentity(&c, now); err != nil {
		return c, err
	}
	err = setKubeletArgs(&c, d.cfg.KubeletArgs)
	return c, err
}

// kubeletIdentity sets by which certificates the kubelet is known, and whom it trusts. Beside an API server it gets one of the
// server's authority; one that has joined asks for its own, and renews them.
func (d *Daemon) kubeletIdentity(c *kubeletconfig.Config, now time.Time) error {
	pkiDir := filepath.Join(d.cfg.DataDir, "pki")
	if !d.cfg.Role.HasServer() {
		c.Kubeconfig, c.CertDir, c.HangUp = nodeKubeconfig(&d.cfg), pkiDir, d.joined.hangUp
		c.RotateCertificates, c.ServerTLSBootstrap = true, true
		c.Authentication.X509.ClientCAFile = clusterCA(&d.cfg)
		return nil
	}
	ca := d.api.CA()
	names, ips := d.servingNames()
	cert, key, err := ca.Issue(pkiDir, "kubelet-serving", pki.Leaf{
		CommonName: nodeUser(d.cfg.NodeName), Organizations: []string{nodesGroup},
		DNSNames: names, IPs: ips, Server: true,
	}, now)
	if err != nil {
		return fmt.Errorf("the kubelet's certificate: %w", err)
	}
	c.TLSCertFile, c.TLSPrivateKeyFile = cert, key
	c.Authentication.X509.ClientCAFile = ca.CertFile
	return nil
}

// The thresholds at which pods that fill the disk are evicted: a twentieth of it, within these
// bounds. A tenth, upstream's default, is a lot of a laptop's disk, and more than the machine's
// owner may have left for us.
const (
	leastDisk    = 96 << 20 // above what the cluster's data need for themselves
	mostDisk     = 1 << 30
	diskPressure = 10 * time.Second // how long the node takes no pods afterwards
)

func diskThresholds(c *kubeletconfig.Config) error {
	room, err := disk.Look(c.RootDir)
	if err != nil {
		return err
	}
	least := strconv.FormatUint(leastFree(room), 10)
	c.EvictionHard = map[string]string{
		"memory.available": "100Mi", "nodefs.available": least, "imagefs.available": least,
		"nodefs.inodesFree": "2%", "imagefs.inodesFree": "2%",
	}
	c.EvictionPressureTransitionPeriod.Duration = diskPressure
	high, low := imageThresholds(room)
	c.ImageGCHighThresholdPercent, c.ImageGCLowThresholdPercent = &high, &low
	return nil
}

// imageThresholds returns how full the disk may be before unused images are removed, and how full it is
// then: twice what is kept free for pods, and twice that. Upstream's 85 and 80 percent would take the
// images of anybody whose disk is rather full.
func imageThresholds(room disk.Room) (high, low int32) {
	if room.Total == 0 {
		return 100, 99
	}
	part := min(max(int32((2*leastFree(room)*100+room.Total-1)/room.Total), 1), 40)
	return 100 - part, 100 - 2*part
}

func leastFree(room disk.Room) uint64 { return min(max(room.Total/20, leastDisk), mostDisk) }

// keepFree returns where pulls stop, a little above the thresholds: no pod is evicted for an image.
func keepFree(room disk.Room) (bytes, inodes uint64) {
	const above = 32 << 20
	return leastFree(room) + above, room.Inodes / 25
}

// containerLogsDir returns the folder in which log collectors look; instances other than the
// default one keep their links with their logs.
func containerLogsDir(cfg *config.Config) string {
	if cfg.DataDir == config.DefaultDataDir {
		return "/var/log/containers"
	}
	return filepath.Join(cfg.DataDir, "log", "containers")
}
