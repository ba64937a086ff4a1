package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"wherry.dev/internal/api/report"
	"wherry.dev/internal/explain"
)

func explainCommand(d *dirs) *cobra.Command {
	var namespace, output string
	cmd := &cobra.Command{
		Use:   "explain pod/NAME",
		Short: "Say why a pod is where it is, and what it waits for",
		Long: `Says in plain words why a pod is Pending, ContainerCreating, not ready or
Terminating: the step that it waits for, since when, what that step last said, and what
would let it continue. It asks the API server and, through it, the kubelet of the pod's
node (the path /debug/reports, which needs permission to get nodes/proxy). If $KUBECONFIG
is set, it asks that cluster.`,
		Example: `  wherry explain pod/hello
  wherry explain pod/hello -n demo
  wherry explain pod/hello -o json`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			name, err := podName(args[0])
			if err != nil {
				return err
			}
			client, err := apiClient(d)
			if err != nil {
				return err
			}
			facts, err := gather(cmd.Context(), client, namespace, name)
			if err != nil {
				return err
			}
			return printExplanation(cmd.OutOrStdout(), facts, output)
		},
	}
	cmd.Flags().StringVarP(&namespace, "namespace", "n", metav1.NamespaceDefault, "namespace of the pod")
	cmd.Flags().StringVarP(&output, "output", "o", "", "json for machines")
	return cmd
}

// podName accepts pod/NAME, pods/NAME or NAME.
func podName(arg string) (string, error) {
	name := strings.TrimPrefix(strings.TrimPrefix(arg, "pods/"), "pod/")
	if name == "" || strings.Contains(name, "/") {
		return "", fmt.Errorf("%q: want pod/NAME", arg)
	}
	return name, nil
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

// gather reads everything that an explanation is based on, leaving out what the user may not read.
func gather(ctx context.Context, client kubernetes.Interface, namespace, name string) (explain.Facts, error) {
	pod, err := client.CoreV1().Pods(namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return explain.Facts{}, err
	}
	f := explain.Facts{Now: time.Now(), Pod: pod}
	events, err := client.CoreV1().Events(namespace).List(ctx, metav1.ListOptions{
		FieldSelector: fields.OneTermEqualSelector("involvedObject.uid", string(pod.UID)).String(),
	})
	if err == nil {
		f.Events = events.Items
	}
	if pod.Spec.NodeName == "" {
		return f, nil
	}
	f.Node, err = client.CoreV1().Nodes().Get(ctx, pod.Spec.NodeName, metav1.GetOptions{})
	if err != nil {
		f.Node, f.NodeGone = nil, apierrors.IsNotFound(err)
	}
	if !f.NodeGone {
		askKubelet(ctx, client, &f)
	}
	return f, nil
}

// inWords returns the error in the answer's body, if there is one: the error of a raw request has
// only the name of the status code.
func inWords(err error, body []byte) error {
	var status metav1.Status
	if json.Unmarshal(body, &status) == nil && status.Kind == "Status" && status.Message != "" {
		return &apierrors.StatusError{ErrStatus: status}
	}
	return err
}

// askKubelet asks the kubelet of the pod's node for a report of what the pod waits for.
func askKubelet(ctx context.Context, client kubernetes.Interface, f *explain.Facts) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	answer, err := client.CoreV1().RESTClient().Get().Resource("nodes").Name(f.Pod.Spec.NodeName).SubResource("proxy").
		Suffix("debug", "reports", f.Pod.Namespace, f.Pod.Name, string(f.Pod.UID)).DoRaw(ctx)
	kubelet := &report.Pod{}
	if err == nil {
		err = json.Unmarshal(answer, kubelet)
	} else {
		err = inWords(err, answer)
	}
	switch {
	case err == nil && kubelet.Kind != report.Kind:
		f.KubeletErr = fmt.Sprintf("it answered with a %q instead of a %s: it is not Wherry's", kubelet.Kind, report.Kind)
	case err == nil && kubelet.APIVersion != report.APIVersion:
		f.KubeletErr = fmt.Sprintf("it reports as %s, but this wherry reads %s: use the same version of wherry as the node", kubelet.APIVersion, report.APIVersion)
	case err == nil:
		f.Kubelet = kubelet
	case apierrors.IsNotFound(err) && bytes.Contains(answer, []byte(report.NoPod)):
		f.KubeletGone = true
	case apierrors.IsNotFound(err):
		f.KubeletErr = "it is not Wherry's, or its debugging handlers are off: " + err.Error()
	default:
		f.KubeletErr = err.Error()
	}
}

func printExplanation(w io.Writer, f explain.Facts, output string) error {
	x := explain.Explain(f)
	switch output {
	case "json":
		enc := json.NewEncoder(w)
		enc.SetIndent("", "  ")
		return enc.Encode(x)
	case "":
		_, err := io.WriteString(w, x.Text(f.Now))
		return err
	default:
		return fmt.Errorf("--output %q: want json or nothing", output)
	}
}
