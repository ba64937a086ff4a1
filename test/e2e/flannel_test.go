package e2e

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"

	"wherry.dev/test/flannel"
)

// Somebody else's network is installed by pods, on a cluster that has none until then: flannel's own daemon and plugin, with our
// bridge and portmap behind them. FLANNEL is the path of flanneld, FLANNEL_CNI that of its plugin.
func TestFlannel(t *testing.T) {
	daemon, plugin := os.Getenv("FLANNEL"), os.Getenv("FLANNEL_CNI")
	if daemon == "" || plugin == "" {
		t.Skip("set FLANNEL and FLANNEL_CNI to the paths of flannel's daemon and of its CNI plugin")
	}
	s := newSeveral(t, 2, 0)
	plugins := filepath.Join(filepath.Dir(filepath.Dir(s.net.Machines[0].Data)), "plugins")
	if _, err := s.on(s.net.Machines[0], "cni", "install", plugins); err != nil {
		t.Fatal(err)
	}
	for _, m := range s.net.Machines {
		if err := flannel.SaveImage(filepath.Join(m.Data, "images", "flannel.tar"), daemon, plugin); err != nil {
			t.Fatal(err)
		}
	}
	s.serve("--network-mode", "none", "--cni-bin-dir", plugins)
	if err := s.join(s.net.Machines[1], "--cni-bin-dir", plugins); err != nil {
		t.Fatal(err)
	}
	if err := flannel.Install(t.Context(), s.client, s.net.Machines, plugins); err != nil {
		t.Fatal(err)
	}
	for _, m := range s.net.Machines {
		s.create(teller(m))
	}
	for _, m := range s.net.Machines {
		s.await("on-"+m.Name, "ready", ready)
	}
	svc := s.telling("tellers", func(*v1.ServiceSpec) {})
	for _, from := range s.net.Machines {
		for _, to := range s.net.Machines {
			asker, p := s.cluster.get("on-"+from.Name), s.cluster.get("on-"+to.Name)
			s.eventually(from.Name+" → "+to.Name, func() error {
				name, source, err := s.asks(asker.Name, p.Status.PodIP)
				if err == nil && (name != p.Name || source != asker.Status.PodIP) {
					err = fmt.Errorf("%s answers %s, and %s asked", name, source, asker.Status.PodIP)
				}
				return err
			})
		}
		s.eventually("names on "+from.Name, func() error {
			out, err := s.kubectl("exec", "on-"+from.Name, "--", "nslookup", "tellers.default.svc.cluster.local")
			if err == nil && !strings.Contains(out, svc.Spec.ClusterIP) {
				err = errors.New(out)
			}
			return err
		})
		s.answersOf("the service from "+from.Name, "on-"+from.Name, svc.Spec.ClusterIP, "on-m1", "on-m2")
	}
}
