package daemon

import (
	"context"
	"reflect"
	"slices"
	"testing"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/kubernetes/scheme"

	"wherry.dev/internal/apiserver"
	"wherry.dev/internal/config"
	"wherry.dev/internal/controller/manager"
	"wherry.dev/internal/dns"
	"wherry.dev/internal/proxy"
	"wherry.dev/internal/proxy/policy"
	"wherry.dev/internal/scheduler"
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
		ctx, cancel := context.WithCancel(t.Context())
		f.Start(ctx.Done())
		kinds := f.WaitForCacheSync(ctx.Done())
		cancel()
		f.Shutdown()
		if len(kinds) < 10 {
			t.Errorf("read: %v", kinds)
		}
		for typ := range kinds {
			obj, ok := reflect.TypeAssert[runtime.Object](reflect.New(typ.Elem()))
			if !ok {
				t.Fatal(typ)
			}
			gvks, _, err := scheme.Scheme.ObjectKinds(obj)
			if err != nil {
				t.Fatal(err)
			}
			resource, _ := meta.UnsafeGuessKindToResource(gvks[0])
			if !slices.ContainsFunc(required(mode), func(r apiserver.Required) bool { return r.GroupVersionResource == resource }) {
				t.Errorf("%v is read, and not required", resource)
			}
		}
	}
}
