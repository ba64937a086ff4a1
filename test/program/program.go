// Package program is what the programs under test/ that measure and compare have in common.
package program

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"k8s.io/klog/v2"
)

// Main runs a program under its name. What libraries log goes nowhere, so that the output is the report alone. A signal ends
// ctx, and what run has started is to end with it. An error is printed, and the exit code is 1.
func Main(name string, run func(ctx context.Context) error) {
	klog.LogToStderr(false)
	klog.SetOutput(io.Discard)
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, name+":", err)
		stop()
		os.Exit(1)
	}
}
