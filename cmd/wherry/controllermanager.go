package main

import (
	"context"
	"crypto"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"k8s.io/client-go/util/keyutil"
	componentconfig "k8s.io/component-base/config"
	leaderoptions "k8s.io/component-base/config/options"
	"k8s.io/controller-manager/pkg/clientbuilder"

	"wherry.dev/internal/apiserver/auth/token"
	"wherry.dev/internal/component"
	"wherry.dev/internal/controller/manager"
	"wherry.dev/internal/pki"
	"wherry.dev/internal/safepath"
)

// controllerOptions are kube-controller-manager's flags.
type controllerOptions struct {
	kubeconfig, master        string
	accounts                  bool
	rootCA, signCert, signKey string
	accountKey                string
	qps                       float32
	burst                     int
	lead                      componentconfig.LeaderElectionConfiguration
	serving                   component.Serving
	options                   manager.Options
	common                    *component.Common
}

func controllerManagerCommand() *cobra.Command {
	o := controllerOptions{
		serving: component.NewServing("kube-controller-manager", 10257), options: manager.DefaultOptions(),
		lead: componentconfig.LeaderElectionConfiguration{
			LeaderElect:   true,
			LeaseDuration: metav1.Duration{Duration: 15 * time.Second}, RenewDeadline: metav1.Duration{Duration: 10 * time.Second},
			RetryPeriod:  metav1.Duration{Duration: 2 * time.Second},
			ResourceLock: resourcelock.LeasesResourceLock, ResourceName: "kube-controller-manager", ResourceNamespace: metav1.NamespaceSystem,
		},
	}
	cmd := &cobra.Command{
		Use:   "controller-manager",
		Short: "The controllers alone, with kube-controller-manager's flags",
		Long: `Runs the controllers against the API server at --kubeconfig. Several can run side by side:
one of them leads (--leader-elect). Health, metrics and profiles are served over TLS at
--secure-port. Flags are kube-controller-manager's; one that has no effect here logs a warning.`,
		Example: `  wherry controller-manager --kubeconfig /etc/kubernetes/controller-manager.conf --use-service-account-credentials`,
		Args:    cobra.NoArgs,
		RunE:    func(cmd *cobra.Command, _ []string) error { return o.run(cmd.Context()) },
	}
	o.common = component.AddCommon(cmd, ignoredControllerFlags)
	o.addFlags(cmd.Flags())
	return cmd
}

func (o *controllerOptions) addFlags(f *pflag.FlagSet) {
	f.StringVar(&o.kubeconfig, "kubeconfig", "", "kubeconfig of the API server")
	f.StringVar(&o.master, "master", "", "address of the API server; overrides the kubeconfig's")
	f.BoolVar(&o.accounts, "use-service-account-credentials", false, "run each controller with the rights of its own service account")
	f.StringVar(&o.rootCA, "root-ca-file", "", "certificate authority that is published in every namespace")
	f.StringVar(&o.signCert, "cluster-signing-cert-file", "", "certificate authority that signs certificate signing requests")
	f.StringVar(&o.signKey, "cluster-signing-key-file", "", "its key")
	f.StringVar(&o.accountKey, "service-account-private-key-file", "", "key, RSA or ECDSA, that signs the tokens in secrets of type kubernetes.io/service-account-token")
	f.Float32Var(&o.qps, "kube-api-qps", -1, "most requests per second that the controllers send; negative for no limit")
	f.IntVar(&o.burst, "kube-api-burst", 100, "most requests that the controllers send at once, with --kube-api-qps")
	o.options.AddFlags(f)
	leaderoptions.BindLeaderElectionFlags(&o.lead, f)
	o.serving.AddFlags(f)
}

// Further reasons of controllers' flags.
const (
	notOurs     = "no controller here needs it"
	notRecycled = "volumes are not recycled"
)

// ignoredControllerFlags are upstream's flags that have no effect here, each with the reason.
var ignoredControllerFlags = ignored(map[string]string{
	"enable-garbage-collector": alwaysOn, "enable-dynamic-provisioning": notSupportedSwitch,
	"enable-hostpath-provisioner": notSupportedSwitch, "configure-cloud-routes": notSupportedSwitch, "contention-profiling": notSupportedSwitch,
	"disable-attach-detach-reconcile-sync": notSupportedSwitch,
	"enable-leader-migration":              notSupportedSwitch, "profiling": alwaysOn,

	"concurrent-cron-job-syncs": fixedWorkers, "concurrent-daemonset-syncs": fixedWorkers, "concurrent-deployment-syncs": fixedWorkers,
	"concurrent-endpoint-syncs": fixedWorkers, "concurrent-ephemeralvolume-syncs": fixedWorkers, "concurrent-gc-syncs": fixedWorkers,
	"concurrent-horizontal-pod-autoscaler-syncs": fixedWorkers, "concurrent-job-syncs": fixedWorkers, "concurrent-namespace-syncs": fixedWorkers,
	"concurrent-rc-syncs": fixedWorkers, "concurrent-replicaset-syncs": fixedWorkers, "concurrent-resource-quota-syncs": fixedWorkers,
	"concurrent-resourceclaim-syncs": fixedWorkers, "concurrent-service-endpoint-syncs": fixedWorkers, "concurrent-service-syncs": fixedWorkers,
	"concurrent-serviceaccount-token-syncs": fixedWorkers, "concurrent-statefulset-syncs": fixedWorkers,
	"concurrent-ttl-after-finished-syncs": fixedWorkers, "concurrent-validating-admission-policy-status-syncs": fixedWorkers,
	"mirroring-concurrent-service-endpoint-syncs": fixedWorkers,

	"legacy-service-account-token-clean-up-period": fixedTime,
	"namespace-sync-period":                        fixedTime, "node-monitor-period": fixedTime,
	"resource-quota-sync-period": fixedTime, "endpoint-updates-batch-period": fixedTime,
	"endpointslice-updates-batch-period": fixedTime, "mirroring-endpointslice-updates-batch-period": fixedTime, "min-resync-period": "nothing is resynchronised",
	"max-endpoints-per-slice":            "the number is upstream's default",
	"mirroring-max-endpoints-per-subset": "the number is upstream's default",

	"cluster-signing-kube-apiserver-client-cert-file": "one authority signs for all", "cluster-signing-kube-apiserver-client-key-file": "one authority signs for all",
	"cluster-signing-kubelet-client-cert-file": "one authority signs for all", "cluster-signing-kubelet-client-key-file": "one authority signs for all",
	"cluster-signing-kubelet-serving-cert-file": "one authority signs for all", "cluster-signing-kubelet-serving-key-file": "one authority signs for all",
	"cluster-signing-legacy-unknown-cert-file": "one authority signs for all", "cluster-signing-legacy-unknown-key-file": "one authority signs for all",

	"attach-detach-reconcile-sync-period": "attachments are watched, not compared from time to time",
	"cidr-allocator-type":                 notOurs, "cloud-config": notOurs,
	"cluster-name": notOurs, "controller-start-interval": notOurs, "external-cloud-volume-plugin": notOurs, "feature-gates": notOurs, "flex-volume-plugin-dir": notOurs,
	"kube-api-content-type": "it is always protobuf", "leader-migration-config": notOurs,
	"node-sync-period": notOurs, "pvclaimbinder-sync-period": notOurs,
	"route-reconciliation-period": notOurs, "controller-shutdown-timeout": fixedTime, "concurrent-device-taint-eviction-syncs": fixedWorkers,
	"unsupported-kube-api-over-localhost": notOurs,

	"pv-recycler-increment-timeout-nfs": notRecycled, "pv-recycler-minimum-timeout-hostpath": notRecycled,
	"pv-recycler-minimum-timeout-nfs": notRecycled, "pv-recycler-pod-template-filepath-hostpath": notRecycled,
	"pv-recycler-pod-template-filepath-nfs": notRecycled, "pv-recycler-timeout-increment-hostpath": notRecycled,
}).With(component.Emulation)

func (o *controllerOptions) run(ctx context.Context) error {
	if err := o.common.Apply(ctx); err != nil {
		return err
	}
	base, err := o.restConfig()
	if err != nil {
		return err
	}
	cfg, err := o.config(base)
	if err != nil {
		return err
	}
	stopServing, err := o.serving.Start()
	if err != nil {
		return err
	}
	defer stopServing()
	run := func(ctx context.Context) error {
		served, err := manager.Served(ctx, cfg.Reader.Discovery())
		if err != nil {
			return nil // told to stop before the API server answered
		}
		cfg.Serves = served
		f := manager.NewInformers(cfg.Reader)
		m, err := manager.New(ctx, cfg, f)
		if err != nil {
			return err
		}
		ctx, cancel := context.WithCancel(ctx)
		f.Start(ctx.Done())
		defer f.Shutdown()
		defer cancel()
		return m.Run(ctx)
	}
	ready := make(chan struct{})
	close(ready)
	return component.Run(ctx, base, o.lead, ready, run)
}

func (o *controllerOptions) restConfig() (*rest.Config, error) {
	if o.kubeconfig == "" && o.master == "" {
		return nil, errors.New("--kubeconfig is required: it names the API server whose objects the controllers work on")
	}
	if err := safepath.CheckFile(o.kubeconfig); o.kubeconfig != "" && err != nil {
		return nil, fmt.Errorf("--kubeconfig: %w", err)
	}
	c, err := clientcmd.BuildConfigFromFlags(o.master, o.kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("--kubeconfig: %w", err)
	}
	c.QPS, c.Burst, c.ContentType = o.qps, o.burst, "application/vnd.kubernetes.protobuf"
	c.WarningHandler = rest.NoWarnings{} // what is deprecated is ours to know
	return c, nil
}

// config returns what the controllers work with.
func (o *controllerOptions) config(base *rest.Config) (cfg manager.Config, err error) {
	if err := o.options.Validate(); err != nil {
		return cfg, err
	}
	cfg.Options = &o.options
	if cfg.Reader, err = kubernetes.NewForConfig(base); err != nil {
		return cfg, err
	}
	accounts := clientbuilder.ControllerClientBuilder(clientbuilder.SimpleControllerClientBuilder{ClientConfig: base})
	if o.accounts {
		accounts = clientbuilder.NewDynamicClientBuilder(rest.AnonymousClientConfig(base), cfg.Reader.CoreV1(), metav1.NamespaceSystem)
	}
	cfg.Account = func(name string) (kubernetes.Interface, *rest.Config, error) {
		c, err := accounts.Config(name)
		if err != nil {
			return nil, nil, fmt.Errorf("client of %s: %w", name, err)
		}
		client, err := kubernetes.NewForConfig(c)
		return client, c, err
	}
	if o.rootCA != "" {
		if cfg.RootCA, err = os.ReadFile(o.rootCA); err != nil {
			return cfg, fmt.Errorf("--root-ca-file: %w", err)
		}
	}
	if err := o.openTokens(&cfg); err != nil {
		return cfg, err
	}
	return cfg, o.openSigner(&cfg)
}

// openTokens opens the key of service accounts. Without it, no secret gets a token.
func (o *controllerOptions) openTokens(cfg *manager.Config) error {
	if o.accountKey == "" {
		return nil
	}
	const flag = "--service-account-private-key-file"
	if err := safepath.CheckFile(o.accountKey); err != nil {
		return fmt.Errorf("%s: %w", flag, err)
	}
	key, err := keyutil.PrivateKeyFromFile(o.accountKey)
	if err != nil {
		return fmt.Errorf("%s: %w", flag, err)
	}
	signer, ok := key.(crypto.Signer)
	if !ok {
		return fmt.Errorf("%s: %T cannot sign", flag, key)
	}
	issuer, err := token.NewIssuer("", signer) // tokens in secrets name an issuer of their own
	if err != nil {
		return fmt.Errorf("%s: %w", flag, err)
	}
	cfg.Tokens = issuer
	return nil
}

func (o *controllerOptions) openSigner(cfg *manager.Config) error {
	switch {
	case o.signCert == "" && o.signKey == "":
		return nil
	case o.signCert == "" || o.signKey == "":
		return errors.New("--cluster-signing-cert-file and --cluster-signing-key-file belong together: give both")
	}
	ca, err := pki.OpenCA(o.signCert, o.signKey)
	if err != nil {
		return fmt.Errorf("--cluster-signing-cert-file: %w", err)
	}
	cfg.Signer = ca
	return nil
}
