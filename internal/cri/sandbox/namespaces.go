package sandbox

import (
	"errors"
	"os"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"wherry.dev/internal/netns"
	"wherry.dev/internal/oci"
)

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
func (b *Sandbox) namespaces() map[specs.LinuxNamespaceType]string {
	m := map[specs.LinuxNamespaceType]string{}
	for _, k := range kinds(b.Config.GetLinux().GetSecurityContext().GetNamespaceOptions()) {
		m[specTypes[k]] = netns.Path(b.nsDir(), k)
	}
	if b.UsernsOptions() != nil {
		m[specs.UserNamespace] = netns.Path(b.nsDir(), netns.User)
	}
	if b.current().PIDNS {
		m[specs.PIDNamespace] = b.pidnsPath()
	}
	return m
}

// Shared returns what the sandbox's containers get from it.
func (b *Sandbox) Shared() oci.Sandbox {
	o := b.Config.GetLinux().GetSecurityContext().GetNamespaceOptions()
	sh := oci.Sandbox{
		Namespaces: b.namespaces(),
		Shm:        b.shmDir(),
		Etc:        map[string]string{},
	}
	if u := b.UsernsOptions(); u != nil {
		sh.IDMapping = specMapping(u.GetUids()) // groups use the same mapping
	}
	if h, err := b.hostname(); err == nil {
		sh.Hostname = h
	}
	if o.GetIpc() == runtimeapi.NamespaceMode_NODE {
		sh.Shm = "/dev/shm"
	}
	for _, f := range []string{"hosts", "hostname", "resolv.conf"} {
		sh.Etc["/etc/"+f] = b.etcFile(f)
	}
	return sh
}

// alive reports whether the sandbox's namespaces are still there.
func (b *Sandbox) alive() (bool, error) {
	for _, k := range kinds(b.Config.GetLinux().GetSecurityContext().GetNamespaceOptions()) {
		if ok, err := netns.Pinned(netns.Path(b.nsDir(), k)); err != nil || !ok {
			return false, err
		}
	}
	if b.UsernsOptions() != nil {
		if ok, err := netns.Pinned(netns.Path(b.nsDir(), netns.User)); err != nil || !ok {
			return false, err
		}
	}
	_, err := os.Stat(b.state)
	if errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	return err == nil, err
}
