package main

import (
	"os"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"wherry.dev/scheduler"
)

// TestComponentsKnowUpstreamsFlags has the names of upstream's flags, as --help of its programs shows them. Each has an
// effect here, or is accepted with a warning, or is refused by name.
func TestComponentsKnowUpstreamsFlags(t *testing.T) {
	for file, cmd := range map[string]*cobra.Command{
		"apiserver": apiserverCommand(), "controller-manager": controllerManagerCommand(), "scheduler": scheduler.NewCommand(),
		"kubelet": kubeletCommand(), "proxy": proxyCommand(),
	} {
		names, err := os.ReadFile("testdata/flags/" + file + ".txt")
		if err != nil {
			t.Fatal(err)
		}
		cmd.InitDefaultVersionFlag()
		for name := range strings.FieldsSeq(string(names)) {
			if cmd.Flags().Lookup(name) == nil {
				t.Errorf("wherry %s: --%s is unknown", file, name)
			}
		}
	}
}
