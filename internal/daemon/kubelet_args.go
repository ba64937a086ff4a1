package daemon

import (
	"fmt"

	"github.com/spf13/pflag"

	kubeletconfig "wherry.dev/internal/kubelet/config"
)

// ownKubeletFlags are flags of the kubelet that a whole node sets itself.
var ownKubeletFlags = map[string]string{
	"hostname-override": "use --node-name", "node-ip": "use --node-ip of the node", "node-labels": "use --node-labels of the node",
	"address": "use --bind-address", "port": "use --kubelet-port", "pod-cidr": "use --pod-cidr of the node", "max-pods": "use --max-pods of the node",
	"pod-max-pids": "use --pod-max-pids of the node", "seccomp-default": "use --seccomp-default of the node",
	"cloud-provider": "use --cloud-provider of the node",
	"cluster-dns":    "use --cluster-dns of the node", "cluster-domain": "use --cluster-domain of the node",
	"pod-manifest-path": "use --pod-manifest-path of the node", "pod-logs-dir": "use --pod-logs-dir of the node",
	"container-logs-dir":         "it follows from --data-dir",
	"container-runtime-endpoint": "use --container-runtime-endpoint of the node", "image-service-endpoint": "use --container-runtime-endpoint of the node",
	"root-dir": "it is in --data-dir", "cert-dir": "the node's certificates are in pki of --data-dir",
	"cgroup-root": "it follows from --data-dir", "config": "give each setting by itself", "config-dir": "give each setting by itself",
	"kubeconfig": "the node has an API server of its own", "bootstrap-kubeconfig": "the node has an API server of its own",
	"client-ca-file": "the node's own clients have certificates of its own authority",
	"tls-cert-file":  "the node has a certificate of its own authority", "tls-private-key-file": "the node has a certificate of its own authority",
	"rotate-certificates": "the node has a certificate of its own authority", "rotate-server-certificates": "the node has a certificate of its own authority",
	"register-node": "a node without a Node runs no pods", "enable-server": "kubectl logs and exec need it", "runonce": "it is not supported, as upstream",
	"oom-score-adj": "the node's containers would inherit it", "max-open-files": "the node's containers would inherit it",
	"v": "use --v of the node", "vmodule": "use --v of the node", "logging-format": "the node's log has one format", "log-flush-frequency": "the node's log is not buffered",
	"log-text-split-stream": "the node's log has one format", "log-text-info-buffer-size": "the node's log has one format",
	"log-json-split-stream": "the node's log has one format", "log-json-info-buffer-size": "the node's log has one format",
}

// setKubeletArgs sets flags of --kubelet-arg, on top of what the node has chosen.
func setKubeletArgs(c *kubeletconfig.Config, args []string) error {
	flags := pflag.NewFlagSet("", pflag.ContinueOnError)
	c.AddFlags(flags)
	if err := setFlags(flags, "the kubelet; `wherry kubelet --help` lists them", args, ownKubeletFlags); err != nil {
		return fmt.Errorf("--kubelet-arg: %w", err)
	}
	return nil
}

// checkKubeletArgs finds what is wrong with flags of the kubelet before anything is made.
func checkKubeletArgs(args []string) error {
	c := kubeletconfig.Default()
	if err := setKubeletArgs(&c, args); err != nil {
		return err
	}
	if err := c.Validate(); err != nil {
		return fmt.Errorf("--kubelet-arg: %w", err)
	}
	return nil
}
