package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"wherry.dev/internal/daemon"
	"wherry.dev/internal/explain/gather"
	"wherry.dev/internal/image"
	"wherry.dev/internal/trace"
)

func traceCommand(d *dirs) *cobra.Command {
	var namespace, output string
	var all bool
	cmd := &cobra.Command{
		Use:   "trace TYPE/NAME",
		Short: "Draw what happened on the way of a pod, or of a workload's pods, and how long it took",
		Long: `Draws the start of a pod as a waterfall: every step from the API server to the
running container on one time axis, and which of them dominated. Of a deployment, replica
set, stateful set, daemon set or job, it draws the start of each pod in a row, beginning
with the workload's creation, and above them what was made along with them: the workload
itself, replica sets, and services, whose names are known and whose rules reach the kernel.
Traces are kept in memory, for the newest pods, since the
last start of wherry.`,
		Example: `  wherry trace pod/hello
  wherry trace deploy/web
  wherry trace pod/hello -n demo --all     # restarts and the end too
  wherry trace pod/hello -o json`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			target, err := gather.Parse(args[0])
			if err != nil {
				return err
			}
			target.Namespace = namespace
			if output != "" && output != "json" {
				return fmt.Errorf("--output %q: want json or nothing", output)
			}
			data, run, err := d.resolve()
			if err != nil {
				return err
			}
			client := daemon.Dial(run)
			defer client.Close()
			if target.Kind != "Pod" {
				return traceWorkload(cmd, client, data, target, output, all)
			}
			name := target.Name
			pod, api := findPod(cmd, data, namespace, name)
			t, err := client.Trace(cmd.Context(), string(pod.UID), namespace, name)
			if err != nil {
				return fmt.Errorf("pod %s/%s: %w", namespace, name, err)
			}
			addNode(cmd.Context(), api, daemon.NodeName(data), pod, &t)
			t.Namespace, t.Name = namespace, name
			return printTrace(cmd.OutOrStdout(), t, output, all)
		},
	}
	cmd.Flags().StringVarP(&namespace, "namespace", "n", metav1.NamespaceDefault, "namespace of the object")
	cmd.Flags().StringVarP(&output, "output", "o", "", "json for machines")
	cmd.Flags().BoolVar(&all, "all", false, "everything that is known, not only the start")
	return cmd
}

// findPod asks the API server which pod has the name now. If it does not answer, or the pod is gone, the pod is empty, and
// the daemon looks it up by name.
func findPod(cmd *cobra.Command, dataDir, namespace, name string) (*v1.Pod, kubernetes.Interface) {
	client, err := instanceClient(dataDir)
	if err != nil {
		return &v1.Pod{}, nil
	}
	pod, err := client.CoreV1().Pods(namespace).Get(cmd.Context(), name, metav1.GetOptions{})
	if err != nil {
		return &v1.Pod{}, nil
	}
	return pod, client
}

// nodePatience is how long another node may take to tell what it knows of a pod.
const nodePatience = 5 * time.Second

// addNode adds what the pod's node knows, if that is another one than own. One that does not tell is left out: it may be
// away, or not one of Wherry's.
func addNode(ctx context.Context, api kubernetes.Interface, own string, pod *v1.Pod, t *trace.Trace) {
	if api == nil || pod.Spec.NodeName == "" || pod.Spec.NodeName == own {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, nodePatience)
	defer cancel()
	doc, err := api.CoreV1().RESTClient().Get().Resource("nodes").Name(pod.Spec.NodeName).SubResource("proxy").
		Suffix("debug", "traces", string(pod.UID)).DoRaw(ctx)
	var there trace.Trace
	if err == nil && json.Unmarshal(doc, &there) == nil {
		t.Add(there)
	}
}

// instanceClient returns a client of the instance: traces are those of its node.
func instanceClient(dataDir string) (kubernetes.Interface, error) {
	cfg, err := clientcmd.BuildConfigFromFlags("", filepath.Join(dataDir, "kubeconfig"))
	if err != nil {
		return nil, err
	}
	return kubernetes.NewForConfig(cfg)
}

// traceWorkload draws the pods that a workload has now.
func traceWorkload(cmd *cobra.Command, client *daemon.Client, dataDir string, target gather.Target, output string, all bool) error {
	api, err := instanceClient(dataDir)
	if err != nil {
		return err
	}
	w, err := gather.WorkloadOf(cmd.Context(), api, target)
	if err != nil {
		return err
	}
	r, err := rowsOf(cmd.Context(), client, api, daemon.NodeName(dataDir), strings.ToLower(target.Kind), w)
	if err != nil {
		return err
	}
	if output == "json" {
		return printJSON(cmd.OutOrStdout(), r)
	}
	return drawing().Rows(cmd.OutOrStdout(), r, all)
}

// rowsOf asks for the traces of a workload of a kind, in lower case. own is the node of this instance.
func rowsOf(ctx context.Context, client *daemon.Client, api kubernetes.Interface, own, kind string, w gather.Workload) (r trace.Rows, err error) {
	r.Title = fmt.Sprintf("%s %s/%s", kind, w.Object.GetNamespace(), w.Object.GetName())
	r.Created = w.Object.GetCreationTimestamp().Time // in whole seconds
	add := func(kind string, o metav1.Object) error {
		t, err := client.Trace(ctx, string(o.GetUID()), "", "")
		if errors.Is(err, image.ErrNotFound) { // the client's word for 404
			return nil
		}
		t.Kind, t.Namespace, t.Name = kind, o.GetNamespace(), o.GetName()
		r.Objects = append(r.Objects, t)
		return err
	}
	if err := add(kind, w.Object); err != nil {
		return r, err
	}
	if len(r.Objects) > 0 {
		r.Created = r.Objects[0].Spans[0].Start
	}
	for _, set := range w.Sets {
		if err := add("replicaset", set); err != nil {
			return r, err
		}
	}
	for _, s := range w.Services {
		if err := add("service", s); err != nil {
			return r, err
		}
	}
	for _, p := range w.Pods {
		t, err := client.Trace(ctx, string(p.UID), "", "")
		switch {
		case errors.Is(err, image.ErrNotFound):
			r.Untraced = append(r.Untraced, p.Name)
			continue
		case err != nil:
			return r, fmt.Errorf("pod %s/%s: %w", p.Namespace, p.Name, err)
		}
		addNode(ctx, api, own, p, &t)
		t.Namespace, t.Name = p.Namespace, p.Name
		r.Pods = append(r.Pods, t)
	}
	return r, nil
}

func printJSON(w io.Writer, v any) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	return enc.Encode(v)
}

// drawing fits the terminal, if there is one.
func drawing() trace.Draw {
	draw := trace.Draw{Width: 110}
	if width, _, err := term.GetSize(int(os.Stdout.Fd())); err == nil {
		draw.Width = width
		draw.Color = os.Getenv("NO_COLOR") == ""
	}
	return draw
}

func printTrace(w io.Writer, t trace.Trace, output string, all bool) error {
	if output == "json" {
		return printJSON(w, t)
	}
	draw := drawing()
	episodes := t.Episodes()
	if !all && len(episodes) > 1 {
		fmt.Fprintf(w, "the start of pod %s/%s; --all shows what came after it\n", t.Namespace, t.Name)
		episodes = episodes[:1]
	}
	for i, e := range episodes {
		if i > 0 {
			fmt.Fprintf(w, "\n%s later\n", e[0].Start.Sub(episodes[0][0].Start).Round(time.Millisecond))
		}
		if err := draw.Waterfall(w, e); err != nil {
			return err
		}
	}
	return nil
}
