package main

import (
	"fmt"

	"github.com/spf13/cobra"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"

	"wherry.dev/internal/scheduler"
)

func schedulerCommand() *cobra.Command {
	var kubeconfig, master, file string
	cmd := &cobra.Command{
		Use:     "scheduler",
		Short:   "The scheduler alone, with kube-scheduler's flags",
		Example: `  wherry scheduler --kubeconfig /etc/kubernetes/scheduler.conf`,
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx := cmd.Context()
			if kubeconfig == "" && master == "" {
				return fmt.Errorf("--kubeconfig is required: the API server to schedule for")
			}
			cfg := scheduler.DefaultConfig()
			if file != "" {
				var warnings []string
				var err error
				if cfg, warnings, err = scheduler.LoadConfig(file); err != nil {
					return err
				}
				for _, w := range warnings {
					klog.FromContext(ctx).Info("Warning: " + w)
				}
			}
			rest, err := clientcmd.BuildConfigFromFlags(master, kubeconfig)
			if err != nil {
				return fmt.Errorf("--kubeconfig: %w", err)
			}
			rest.QPS, rest.ContentType = -1, "application/vnd.kubernetes.protobuf"
			client, err := kubernetes.NewForConfig(rest)
			if err != nil {
				return err
			}
			s, err := scheduler.New(ctx, client, cfg)
			if err != nil {
				return err
			}
			return notify(ctx, s.Ready(), s.Run)
		},
	}
	f := cmd.Flags()
	f.StringVar(&kubeconfig, "kubeconfig", "", "kubeconfig of the API server")
	f.StringVar(&master, "master", "", "address of the API server; overrides the kubeconfig's")
	f.StringVar(&file, "config", "", "file with a KubeSchedulerConfiguration")
	return cmd
}
