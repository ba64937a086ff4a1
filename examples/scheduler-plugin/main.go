// Gang-scheduler is kube-scheduler's command with one more plugin: pods that belong together are bound together, or
// not at all. It shows how a plugin of one's own is compiled into Wherry's scheduler.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"wherry.dev/scheduler"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := scheduler.NewCommand(scheduler.WithPlugin(Name, New)).ExecuteContext(ctx); err != nil {
		os.Exit(1)
	}
}
