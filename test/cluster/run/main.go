// Command run makes a cluster of several nodes on this machine, tells how it is used, and takes it away when it is
// interrupted: `make cluster NODES=3`.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"k8s.io/client-go/tools/clientcmd"

	"wherry.dev/test/cluster"
)

func main() {
	nodes := flag.Int("nodes", 3, "how many nodes, the first with the server")
	servers := flag.Int("servers", 1, "how many of them are servers, too")
	routed := flag.Int("routed", 1, "how many of them are behind a router")
	images := flag.String("images", "", "folder of images in archives for all nodes")
	flags := flag.String("flags", "", "further flags of the server, separated by spaces")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, flag.Arg(0), *images, *flags, *nodes, *servers, *routed); err != nil {
		fmt.Fprintln(os.Stderr, "cluster: "+err.Error())
		os.Exit(1)
	}
}

func run(ctx context.Context, wherry, images, flags string, nodes, servers, routed int) (err error) {
	if nodes < 1 || routed < 0 || routed >= nodes {
		return errors.New("-nodes must be at least 1, and -routed less than that: the first node is not behind the router")
	}
	if servers < 1 || servers > nodes-routed {
		return errors.New("-servers must be at least 1, and those are not behind the router")
	}
	if wherry, err = filepath.Abs(wherry); err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "wherry-cluster-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	network, err := cluster.New(ctx, dir, wherry, nodes, routed)
	if err != nil {
		return err
	}
	defer func() {
		fmt.Println("taking the cluster away")
		err = errors.Join(err, network.TakeAway(context.WithoutCancel(ctx)))
	}()
	if err := start(ctx, network, images, strings.Fields(flags), servers); err != nil {
		return err
	}
	kubeconfig, err := expose(ctx, network.Machines[0], dir)
	if err != nil {
		return err
	}
	fmt.Printf("\n  export KUBECONFIG=%s\n  kubectl get nodes -o wide\n\nInterrupt this to take the cluster away.\n", kubeconfig)
	<-ctx.Done()
	return nil
}

// start starts all machines, with the images of a folder if there is one.
func start(ctx context.Context, network *cluster.Network, images string, flags []string, servers int) error {
	began := time.Now()
	if images != "" {
		for _, m := range network.Machines {
			if err := os.CopyFS(filepath.Join(m.Data, "images"), os.DirFS(images)); err != nil {
				return err
			}
		}
	}
	if err := network.Start(ctx, servers, flags, os.Stdout); err != nil {
		return err
	}
	fmt.Printf("%d nodes are Ready after %.1f s\n", len(network.Machines), time.Since(began).Seconds())
	return nil
}

// expose lets this machine's own clients reach the server at a port of the loopback, and returns a kubeconfig for it.
func expose(ctx context.Context, m *cluster.Machine, dir string) (string, error) {
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	context.AfterFunc(ctx, func() { _ = l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go join(ctx, m, c)
		}
	}()
	cfg, err := clientcmd.LoadFromFile(filepath.Join(m.Data, "kubeconfig"))
	if err != nil {
		return "", err
	}
	for _, c := range cfg.Clusters {
		c.Server = "https://" + l.Addr().String()
	}
	path := filepath.Join(dir, "kubeconfig")
	return path, clientcmd.WriteToFile(*cfg, path)
}

func join(ctx context.Context, m *cluster.Machine, c net.Conn) {
	defer func() { _ = c.Close() }()
	s, err := m.Dial(ctx, "tcp", fmt.Sprintf("127.0.0.1:%d", cluster.ServerPort))
	if err != nil {
		fmt.Fprintln(os.Stderr, "cluster: "+err.Error())
		return
	}
	defer func() { _ = s.Close() }()
	done := make(chan struct{}, 2)
	for _, pair := range [][2]net.Conn{{c, s}, {s, c}} {
		go func() {
			_, _ = io.Copy(pair[0], pair[1]) // either side may hang up
			done <- struct{}{}
		}()
	}
	<-done
}
