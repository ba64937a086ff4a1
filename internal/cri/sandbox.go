package cri

import (
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"k8s.io/apimachinery/pkg/api/resource"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"wherry.dev/internal/cni"
	"wherry.dev/internal/netns"
)

// phase is the phase of a sandbox, as its record says.
//
//	making ── RunPodSandbox done ──▶ ready ── StopPodSandbox, or a reboot ──▶ stopped ── removed
//	   └──────────── failed, or found after a crash ──────────────────────────────────▶ removed
type phase string

const (
	phaseMaking  phase = "making"
	phaseReady   phase = "ready"
	phaseStopped phase = "stopped"
)

// sandboxRecord is what a sandbox is made from: sandboxes/<id>/sandbox.json in the durable
// folder, written before anything else is done, and never changed.
type sandboxRecord struct {
	ID        string                                                             `json:"id"`
	Boot      string                                                             `json:"boot"` // ID of the machine's boot in which it was made
	Config    message[runtimeapi.PodSandboxConfig, *runtimeapi.PodSandboxConfig] `json:"config"`
	Handler   string                                                             `json:"handler"`
	CreatedAt int64                                                              `json:"createdAt"`           // ns
	OwnCgroup bool                                                               `json:"ownCgroup,omitempty"` // the parent cgroup is ours to remove
}

// sandboxStatus is the current status of a sandbox: status.json in the state folder, because after a
// reboot every sandbox is stopped.
type sandboxStatus struct {
	Phase   phase           `json:"phase"`
	Network *cni.Attachment `json:"network,omitempty"`
	PIDNS   bool            `json:"pidns,omitempty"` // an init holds a PID namespace
}

// sandbox is a pod's shared environment.
type sandbox struct {
	id       string
	root     string // durable folder
	state    string // folder that a reboot empties
	key      string // identifies it to the kubelet; see sandboxKey
	rec      sandboxRecord
	config   *runtimeapi.PodSandboxConfig
	networks bool // it has its own network namespace

	// op is write-locked while the sandbox is made, stopped or removed, and read-locked while a
	// container is created or started in it.
	op sync.RWMutex

	mu     sync.Mutex // guards status
	status sandboxStatus

	cpu cpuRate
}

func (s *Server) newSandbox(rec sandboxRecord) *sandbox {
	ns := rec.Config.m.GetLinux().GetSecurityContext().GetNamespaceOptions()
	return &sandbox{
		id: rec.ID, rec: rec, config: rec.Config.m, key: sandboxKey(rec.Config.m.GetMetadata()),
		root:     filepath.Join(s.cfg.sandboxRoot(), rec.ID),
		state:    filepath.Join(s.cfg.sandboxState(), rec.ID),
		networks: ns.GetNetwork() != runtimeapi.NamespaceMode_NODE,
		status:   sandboxStatus{Phase: phaseMaking},
	}
}

func (b *sandbox) recordPath() string { return filepath.Join(b.root, "sandbox.json") }
func (b *sandbox) nsDir() string      { return filepath.Join(b.state, "ns") }
func (b *sandbox) netnsPath() string  { return netns.Path(b.nsDir(), netns.Net) }

func (b *sandbox) statusPath() string { return filepath.Join(b.state, "status.json") }

// shareDir returns the folder of what the pod's containers share: /dev/shm and files of /etc.
func (b *sandbox) shareDir() string { return filepath.Join(b.state, "share") }
func (b *sandbox) shmDir() string   { return filepath.Join(b.sharedDir(), "shm") }

func (b *sandbox) etcFile(name string) string { return filepath.Join(b.sharedDir(), name) }

// sharedDir returns the folder of what the containers of a running sandbox share. Older versions
// of Wherry have it all in the state folder.
func (b *sandbox) sharedDir() string {
	if _, err := os.Lstat(b.shareDir()); err != nil {
		return b.state
	}
	return b.shareDir()
}

// current returns a copy of the status.
func (b *sandbox) current() sandboxStatus {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.status
}

// update changes the status, on disk first.
func (b *sandbox) update(change func(*sandboxStatus)) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	next := b.status
	change(&next)
	if err := saveRecord(b.statusPath(), next); err != nil {
		return fmt.Errorf("record sandbox %s: %w", b.id, err)
	}
	b.status = next
	return nil
}

func (b *sandbox) ready() bool { return b.current().Phase == phaseReady }

func (b *sandbox) crState() runtimeapi.PodSandboxState {
	if b.ready() {
		return runtimeapi.PodSandboxState_SANDBOX_READY
	}
	return runtimeapi.PodSandboxState_SANDBOX_NOTREADY
}

func (b *sandbox) uid() string { return b.config.GetMetadata().GetUid() }

// sandboxKey returns what identifies a sandbox to the kubelet, which raises the attempt whenever
// it wants a new one.
func sandboxKey(m *runtimeapi.PodSandboxMetadata) string {
	return fmt.Sprintf("sandbox %s/%s (%s) attempt %d", m.GetNamespace(), m.GetName(), m.GetUid(), m.GetAttempt())
}

// pod returns the sandbox as the network sees it.
func (b *sandbox) pod() cni.Pod {
	m := b.config.GetMetadata()
	p := cni.Pod{
		ID: b.id, Name: m.GetName(), Namespace: m.GetNamespace(), UID: m.GetUid(),
		NetNS: b.netnsPath(), Ports: portMappings(b.config.GetPortMappings()),
		Cgroup: b.config.GetLinux().GetCgroupParent(),
	}
	if d := b.config.GetDnsConfig(); d != nil {
		p.DNS = &cni.DNS{Servers: d.GetServers(), Searches: d.GetSearches(), Options: d.GetOptions()}
	}
	if at := b.current().Network; at != nil {
		p.IPs = at.IPs
	}
	p.Bandwidth, _ = bandwidth(b.config.GetAnnotations()) // what does not parse was refused earlier
	return p
}

// bandwidth reads the limits that a pod asks for, in bits per second.
func bandwidth(annotations map[string]string) (cni.Bandwidth, error) {
	var b cni.Bandwidth
	for key, limit := range map[string]*uint64{
		"kubernetes.io/ingress-bandwidth": &b.Ingress,
		"kubernetes.io/egress-bandwidth":  &b.Egress,
	} {
		s, ok := annotations[key]
		if !ok {
			continue
		}
		q, err := resource.ParseQuantity(s)
		if err != nil {
			return b, fmt.Errorf("annotation %s: %q: %w", key, s, err)
		}
		if q.Value() < 1e3 || q.Value() > 1e15 {
			return b, fmt.Errorf("annotation %s: %s is not between 1k and 1P bits per second", key, s)
		}
		*limit = uint64(q.Value())
	}
	return b, nil
}

func portMappings(ps []*runtimeapi.PortMapping) []cni.PortMapping {
	var out []cni.PortMapping
	for _, p := range ps {
		if p.GetHostPort() <= 0 || p.GetHostPort() > 65535 || p.GetContainerPort() <= 0 || p.GetContainerPort() > 65535 {
			continue // declared only, not opened on the host
		}
		ip, err := netip.ParseAddr(p.GetHostIp())
		if err != nil {
			ip = netip.Addr{} // empty means every address; anything else was refused earlier
		}
		out = append(out, cni.PortMapping{
			Protocol: strings.ToLower(p.GetProtocol().String()), HostIP: ip,
			ContainerPort: uint16(p.GetContainerPort()), HostPort: uint16(p.GetHostPort()),
		})
	}
	return out
}

// kinds returns the namespaces that the sandbox has for itself.
func kinds(o *runtimeapi.NamespaceOption) []netns.Kind {
	var ks []netns.Kind
	if o.GetNetwork() != runtimeapi.NamespaceMode_NODE {
		ks = append(ks, netns.Net, netns.UTS) // a pod on the host network keeps the host's name
	}
	if o.GetIpc() != runtimeapi.NamespaceMode_NODE {
		ks = append(ks, netns.IPC)
	}
	return ks
}

var specTypes = map[netns.Kind]specs.LinuxNamespaceType{
	netns.Net: specs.NetworkNamespace, netns.IPC: specs.IPCNamespace, netns.UTS: specs.UTSNamespace,
}

// namespaces returns the paths of the namespaces that containers join.
func (b *sandbox) namespaces() map[specs.LinuxNamespaceType]string {
	m := map[specs.LinuxNamespaceType]string{}
	for _, k := range kinds(b.config.GetLinux().GetSecurityContext().GetNamespaceOptions()) {
		m[specTypes[k]] = netns.Path(b.nsDir(), k)
	}
	if b.usernsOptions() != nil {
		m[specs.UserNamespace] = netns.Path(b.nsDir(), netns.User)
	}
	if b.current().PIDNS {
		m[specs.PIDNamespace] = b.pidnsPath()
	}
	return m
}

// findSandbox finds a sandbox by its ID or an unambiguous prefix of it.
func (s *Server) findSandbox(id string) (*sandbox, error) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return lookup(s.sandboxes, "sandbox", id)
}

func lookup[T any](m map[string]T, kind, id string) (T, error) {
	if x, ok := m[id]; ok {
		return x, nil
	}
	var found T
	n := 0
	if id != "" {
		for full, x := range m {
			if strings.HasPrefix(full, id) {
				found = x
				n++
			}
		}
	}
	var none T
	switch n {
	case 0:
		return none, notFound("%s %q not found", kind, id)
	case 1:
		return found, nil
	}
	return none, invalid("%s ID %q is ambiguous", kind, id)
}

// newID returns an ID for a sandbox or container: 256 random bits.
func newID() string {
	b := make([]byte, 32)
	_, _ = rand.Read(b) // never fails (crypto/rand)
	return hex.EncodeToString(b)
}
