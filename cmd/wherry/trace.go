package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"wherry.dev/internal/daemon"
	"wherry.dev/internal/trace"
)

func traceCommand(d *dirs) *cobra.Command {
	var namespace, output string
	var all bool
	cmd := &cobra.Command{
		Use:   "trace pod/NAME",
		Short: "Draw what happened on a pod's way, and how long each step took",
		Long: `Draws the start of a pod as a waterfall: every step from the API server to the
running container on one time axis, and which of them dominated. Traces are kept in
memory, for the newest pods, since the last start of wherry.`,
		Example: `  wherry trace pod/hello
  wherry trace pod/hello -n demo --all     # restarts and the end too
  wherry trace pod/hello -o json`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			name, err := podName(args[0])
			if err != nil {
				return err
			}
			data, run, err := d.resolve()
			if err != nil {
				return err
			}
			client := daemon.Dial(run)
			defer client.Close()
			t, err := client.Trace(cmd.Context(), podUID(cmd, data, namespace, name), namespace, name)
			if err != nil {
				return fmt.Errorf("pod %s/%s: %w", namespace, name, err)
			}
			t.Namespace, t.Name = namespace, name
			return printTrace(cmd.OutOrStdout(), t, output, all)
		},
	}
	cmd.Flags().StringVarP(&namespace, "namespace", "n", metav1.NamespaceDefault, "namespace of the pod")
	cmd.Flags().StringVarP(&output, "output", "o", "", "json for machines")
	cmd.Flags().BoolVar(&all, "all", false, "everything that is known, not only the start")
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

// podUID asks the API server which pod has the name now. If it does not answer, or the pod is gone,
// the daemon looks the pod up by name.
func podUID(cmd *cobra.Command, dataDir, namespace, name string) string {
	cfg, err := clientcmd.BuildConfigFromFlags("", filepath.Join(dataDir, "kubeconfig"))
	if err != nil {
		return ""
	}
	client, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		return ""
	}
	pod, err := client.CoreV1().Pods(namespace).Get(cmd.Context(), name, metav1.GetOptions{})
	if err != nil {
		return ""
	}
	return string(pod.UID)
}

func printTrace(w io.Writer, t trace.Trace, output string, all bool) error {
	switch output {
	case "json":
		enc := json.NewEncoder(w)
		enc.SetIndent("", "  ")
		return enc.Encode(t)
	case "":
	default:
		return fmt.Errorf("--output %q: want json or nothing", output)
	}
	draw := trace.Draw{Width: 110}
	if width, _, err := term.GetSize(int(os.Stdout.Fd())); err == nil {
		draw.Width = width
		draw.Color = os.Getenv("NO_COLOR") == ""
	}
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
