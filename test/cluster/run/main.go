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
	"sync"
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
		err = errors.Join(err, takeAway(context.WithoutCancel(ctx), network))
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

// start starts the server with the first node, and lets the others join.
func start(ctx context.Context, network *cluster.Network, images string, flags []string, servers int) error {
	began := time.Now()
	var token, serverToken string
	for i, m := range network.Machines {
		if images != "" {
			if err := os.CopyFS(filepath.Join(m.Data, "images"), os.DirFS(images)); err != nil {
				return err
			}
		}
		args := []string{"join", network.Machines[0].Server(), "--token", token, "--node-name", m.Name, "--detach"}
		if i > 0 && i < servers {
			args = append([]string{"up", "--join-server", network.Machines[0].Server(), "--token", serverToken, "--node-name", m.Name, "--detach"}, flags...)
		}
		if i == 0 {
			args = append([]string{"up", "--node-name", m.Name, "--detach"}, flags...)
		}
		cmd := m.Wherry(ctx, args...)
		cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
		if err := cmd.Run(); err != nil {
			return fmt.Errorf("%s: %w", m.Name, err)
		}
		if i == 0 {
			out, err := m.Wherry(ctx, "token", "create", "--ttl", "1h").Output()
			if err != nil {
				return fmt.Errorf("token: %w", err)
			}
			token = strings.TrimSpace(string(out))
			if out, err = m.Wherry(ctx, "token", "create", "--server").Output(); err != nil {
				return fmt.Errorf("token for servers: %w", err)
			}
			serverToken = strings.TrimSpace(string(out))
		}
	}
	fmt.Printf("%d nodes are Ready after %.1f s\n", len(network.Machines), time.Since(began).Seconds())
	return nil
}

// takeAway takes all instances down, the server last.
func takeAway(ctx context.Context, network *cluster.Network) error {
	errs := make([]error, len(network.Machines))
	var all sync.WaitGroup
	for i, m := range network.Machines {
		all.Go(func() {
			if out, err := m.Wherry(ctx, "down", "--purge").CombinedOutput(); err != nil {
				errs[i] = fmt.Errorf("%s: %w: %s", m.Name, err, out)
			}
		})
	}
	all.Wait()
	return errors.Join(append(errs, network.Close())...)
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
