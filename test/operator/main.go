// Operator is a controller as users write them with controller-runtime: it runs each Shop as a Deployment
// that the Shop owns, says in its status how far that is, and closes the shop's till before it goes. Its
// webhooks give shops their defaults, refuse some, and convert them, under a CA that it makes itself.
package main

import (
	"context"
	"crypto/tls"
	"flag"
	"fmt"
	"os"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/controller-runtime/pkg/webhook"

	"wherry.dev/test/operator/api"
	"wherry.dev/test/operator/api/v1alpha1"
)

func main() {
	elect := flag.Bool("leader-elect", false, "let one of several work at a time")
	flag.Parse()
	if err := run(ctrl.SetupSignalHandler(), *elect); err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, elect bool) error {
	ctrl.SetLogger(klog.Background())
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{
		clientgoscheme.AddToScheme, apiextensionsv1.AddToScheme, api.AddToScheme, v1alpha1.AddToScheme,
	} {
		if err := add(scheme); err != nil {
			return err
		}
	}
	mgr, err := newManager(ctx, scheme, elect)
	if err != nil {
		return err
	}
	if err := serveWebhooks(mgr); err != nil {
		return err
	}
	if err := mgr.AddReadyzCheck("webhooks", mgr.GetWebhookServer().StartedChecker()); err != nil {
		return err
	}
	r := &shops{Client: mgr.GetClient(), events: mgr.GetEventRecorder("shop-operator")}
	if err := r.setUp(mgr); err != nil {
		return err
	}
	return mgr.Start(ctx)
}

func newManager(ctx context.Context, scheme *runtime.Scheme, elect bool) (ctrl.Manager, error) {
	cfg, err := ctrl.GetConfig()
	if err != nil {
		return nil, err
	}
	direct, err := client.New(cfg, client.Options{Scheme: scheme}) // the manager's does not read before its start
	if err != nil {
		return nil, err
	}
	serving, err := servingCertificate(ctx, direct, os.Getenv("POD_NAMESPACE"))
	if err != nil {
		return nil, err
	}
	return ctrl.NewManager(cfg, ctrl.Options{
		Scheme:                        scheme,
		Metrics:                       metricsserver.Options{BindAddress: "0"},
		HealthProbeBindAddress:        ":8081",
		LeaderElection:                elect,
		LeaderElectionID:              "shops.shop.wherry.dev",
		LeaderElectionReleaseOnCancel: true,
		WebhookServer: webhook.NewServer(webhook.Options{TLSOpts: []func(*tls.Config){func(c *tls.Config) {
			c.GetCertificate = func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return &serving, nil }
		}}}),
	})
}
