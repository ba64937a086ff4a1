// Build writes the demo and test images into the folder given as its argument.
package main

import (
	"fmt"
	"os"
	"path/filepath"

	"wherry.dev/test/images"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: build DIR")
		os.Exit(2)
	}
	if err := images.SaveBusybox(filepath.Join(os.Args[1], "busybox.tar")); err != nil {
		fmt.Fprintln(os.Stderr, "build images:", err)
		os.Exit(1)
	}
}
