// wherry-cni is Wherry's CNI plugins and nothing else, so that they start at once:
// docs/adr/0004-plugins-start-fast.md. The name that it is called by selects the plugin.
package main

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	"wherry.dev/internal/cni/plugin"
)

// Threads enter namespaces; the main one stays where it is.
func init() { runtime.LockOSThread() }

func main() {
	name := filepath.Base(os.Args[0])
	if !plugin.Known(name) {
		fmt.Fprintf(os.Stderr, "%s: run it under the name of a CNI plugin (%s); `wherry cni install DIR` creates the links\n",
			name, strings.Join(plugin.Names(), ", "))
		os.Exit(1)
	}
	os.Exit(plugin.Main(name))
}
