package daemon

import (
	"slices"
	"testing"

	"k8s.io/client-go/kubernetes/fake"

	"wherry.dev/internal/apiserver"
	"wherry.dev/internal/config"
	"wherry.dev/internal/controller/manager"
	"wherry.dev/internal/dns"
	"wherry.dev/internal/proxy"
	"wherry.dev/internal/proxy/policy"
	"wherry.dev/internal/scheduler"
	"wherry.dev/test/informers"
)

// What the scheduler and the network read from informers is what must not be switched off.
func TestWhatIsReadMustNotBeSwitchedOff(t *testing.T) {
	for _, mode := range []string{config.NoProxy, ""} {
		client := fake.NewClientset()
		f := manager.NewInformers(client)
		cfg := scheduler.DefaultConfig()
		cfg.Informers = f
		_, err := scheduler.New(t.Context(), client, cfg)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := dns.NewRecords(f); err != nil {
			t.Fatal(err)
		}
		if mode != config.NoProxy {
			if _, err := proxy.New(proxy.Config{Node: "n", Table: "t"}, f); err != nil {
				t.Fatal(err)
			}
			if _, err := policy.New(policy.Config{Node: "n", Table: "t"}, f); err != nil {
				t.Fatal(err)
			}
		}
		read := informers.Asked(t, f)
		if len(read) < 10 {
			t.Errorf("read: %v", read)
		}
		for _, resource := range read {
			if !slices.ContainsFunc(required(mode), func(r apiserver.Required) bool { return r.GroupVersionResource == resource }) {
				t.Errorf("%v is read, and not required", resource)
			}
		}
	}
}
