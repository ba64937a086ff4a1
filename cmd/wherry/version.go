package main

import (
	"encoding/json"
	"fmt"
	"runtime"

	"github.com/spf13/cobra"
	kubeversion "k8s.io/component-base/version"

	"wherry.dev/internal/version"
)

func versionCommand() *cobra.Command {
	var output string
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Print the versions of Wherry and of the Kubernetes API it speaks",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			v := map[string]string{
				"wherry": version.Version, "kubernetes": kubeversion.Get().GitVersion,
				"go": runtime.Version(), "platform": runtime.GOOS + "/" + runtime.GOARCH,
			}
			switch output {
			case "":
				_, err := fmt.Fprintf(cmd.OutOrStdout(), "wherry %s (Kubernetes %s, %s, %s)\n", v["wherry"], v["kubernetes"], v["go"], v["platform"])
				return err
			case "json":
				return json.NewEncoder(cmd.OutOrStdout()).Encode(v)
			}
			return fmt.Errorf("--output %q: want json or nothing", output)
		},
	}
	cmd.Flags().StringVarP(&output, "output", "o", "", "json for machines")
	return cmd
}
