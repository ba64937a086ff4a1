package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"wherry.dev/internal/explain"
	"wherry.dev/internal/explain/gather"
)

func explainCommand(d *dirs) *cobra.Command {
	var namespace, output, from, fromNamespace string
	var whyNode bool
	cmd := &cobra.Command{
		Use:   "explain TYPE/NAME",
		Short: "Say why a pod, a workload or a service is where it is, and what it waits for",
		Long: `Says in plain words what an object waits for: the step, since when, what that step last
said, and what would let it continue.

  pod                     why it is Pending, ContainerCreating, not ready or Terminating
  deploy, rs, sts, ds     why the rollout is not done, or the set is not complete
  job, cronjob            why it does not run or end; when it runs next
  svc                     why it does not answer, and where it is reached
  hpa                     why it does not scale
  pvc                     why it is not bound, and who uses it

With --from, network policies are part of the answer: which of them keeps that pod, or that
address, from the service or the pod, in which direction, and what it lacks.

If it is pods that hold the object up, their own explanation follows, one of each sort. It
asks the API server and, through it, the kubelet of a pod's node (the path /debug/reports,
which needs permission to get nodes/proxy). About a pod without a node it asks the scheduler
that runs beside the API server (/debug/scheduler, which needs permission to get that path):
why each node does not fit, and what would help. If $KUBECONFIG is set, it asks that cluster.`,
		Example: `  wherry explain pod/hello
  wherry explain deploy/web -n demo
  wherry explain svc/web -o json
  wherry explain svc/db --from pod/web
  wherry explain pod/hello --why-node`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			target, err := gather.Parse(args[0])
			if err != nil {
				return err
			}
			if output != "" && output != "json" {
				return fmt.Errorf("--output %q: want json or nothing", output)
			}
			target.Namespace = namespace
			client, err := apiClient(d)
			if err != nil {
				return err
			}
			ask := gather.Explain
			switch {
			case whyNode:
				ask = gather.WhyNode
			case from != "":
				who, err := gather.ParseFrom(from, cmp.Or(fromNamespace, namespace))
				if err != nil {
					return fmt.Errorf("--from: %w", err)
				}
				ask = func(ctx context.Context, client kubernetes.Interface, t gather.Target) (explain.Explanation, error) {
					return gather.Reach(ctx, client, t, who)
				}
			}
			x, err := ask(cmd.Context(), client, target)
			if err != nil {
				return err
			}
			return printExplanation(cmd.OutOrStdout(), x, output)
		},
	}
	cmd.Flags().StringVarP(&namespace, "namespace", "n", metav1.NamespaceDefault, "namespace of the object")
	cmd.Flags().BoolVar(&whyNode, "why-node", false, "say how the node of a pod was chosen: which ones fitted, and how they scored")
	cmd.Flags().StringVar(&from, "from", "", "say which network policies keep this client from a service or a pod: pod/NAME, or an address")
	cmd.Flags().StringVar(&fromNamespace, "from-namespace", "", "namespace of the pod in --from, if it is another one than the object's")
	cmd.MarkFlagsMutuallyExclusive("from", "why-node")
	cmd.Flags().StringVarP(&output, "output", "o", "", "json for machines")
	return cmd
}

// apiClient returns a client of $KUBECONFIG, or of the instance of --data-dir.
func apiClient(d *dirs) (kubernetes.Interface, error) {
	file := os.Getenv("KUBECONFIG")
	if file == "" {
		data, _, err := d.resolve()
		if err != nil {
			return nil, err
		}
		file = filepath.Join(data, "kubeconfig")
	}
	cfg, err := clientcmd.BuildConfigFromFlags("", file)
	if err != nil {
		return nil, fmt.Errorf("kubeconfig: %w", err)
	}
	return kubernetes.NewForConfig(cfg)
}

func printExplanation(w io.Writer, x explain.Explanation, output string) error {
	if output == "json" {
		return printJSON(w, x)
	}
	_, err := io.WriteString(w, x.Text(time.Now()))
	return err
}
