package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"wherry.dev/internal/pki"
	"wherry.dev/test/bench/servers"
)

// side is an API server with controllers, and a player.
type side struct {
	name    string
	api     *servers.Server
	manager servers.Process
	client  kubernetes.Interface
	dynamic dynamic.Interface
	player  *player
	seen    map[string]string // what UIDs are of, of this scene
}

// startSide starts an API server of ours and a program that takes kube-controller-manager's flags.
func startSide(ctx context.Context, dir, wherry, controllers string, args ...string) (_ *side, err error) {
	if err := os.Mkdir(dir, 0o700); err != nil {
		return nil, err
	}
	if err := servers.Prepare(dir); err != nil {
		return nil, err
	}
	s := &side{name: filepath.Base(dir)}
	if s.api, err = servers.Wherry(wherry)(ctx, dir); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.api.Stop())
		}
	}()
	kubeconfig := filepath.Join(dir, "kubeconfig")
	err = servers.WriteKubeconfig(kubeconfig, s.api.Config)
	if err != nil {
		return nil, err
	}
	ca, err := pki.LoadOrCreateCA(dir, "ca", "ca", time.Now())
	if err != nil {
		return nil, err
	}
	port, err := servers.FreePort()
	if err != nil {
		return nil, err
	}
	sub := filepath.Join(dir, "controllers") // for its log
	if err = os.Mkdir(sub, 0o700); err != nil {
		return nil, err
	}
	s.manager, err = servers.Command(ctx, sub, controllers, append(args, "--kubeconfig", kubeconfig, "--leader-elect=false",
		"--secure-port", port, "--bind-address", "127.0.0.1", "--authentication-kubeconfig", kubeconfig, "--authorization-kubeconfig", kubeconfig,
		"--service-account-private-key-file", filepath.Join(dir, "sa.key"), "--root-ca-file", ca.CertFile,
		"--cluster-signing-cert-file", ca.CertFile, "--cluster-signing-key-file", ca.KeyFile, "--kube-api-qps=1000", "--kube-api-burst=2000")...)
	if err != nil {
		return nil, err
	}
	cfg := rest.CopyConfig(s.api.Config)
	if s.client, err = kubernetes.NewForConfig(cfg); err == nil {
		cfg.ContentConfig = rest.ContentConfig{}
		s.dynamic, err = dynamic.NewForConfig(cfg)
	}
	if err == nil {
		s.player, err = newPlayer(ctx, s.client)
	}
	if err != nil {
		return nil, errors.Join(err, s.manager.End())
	}
	return s, nil
}

func (s *side) stop() error {
	s.player.stop()
	return errors.Join(s.manager.End(), s.api.Stop())
}

// of returns the pods of a workload that run, the oldest first.
func (s *side) of(ctx context.Context, namespace, owner string) ([]v1.Pod, error) {
	list, err := s.client.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{LabelSelector: labelOwner + "=" + owner})
	if err != nil {
		return nil, err
	}
	pods := slices.DeleteFunc(list.Items, func(p v1.Pod) bool { return p.DeletionTimestamp != nil || p.Status.Phase != v1.PodRunning })
	slices.SortFunc(pods, func(a, b v1.Pod) int {
		return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), strings.Compare(a.Name, b.Name))
	})
	return pods, nil
}

// clear deletes a scene's namespace and volumes, and makes the node as it was.
func (s *side) clear(ctx context.Context, namespace string) error {
	if err := s.client.CoreV1().Namespaces().Delete(ctx, namespace, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
		return err
	}
	if err := s.shake(ctx, restored); err != nil {
		return err
	}
	volumes, err := s.client.CoreV1().PersistentVolumes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	for _, v := range volumes.Items {
		if err := s.client.CoreV1().PersistentVolumes().Delete(ctx, v.Name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("volume %s: %w", v.Name, err)
		}
	}
	return nil
}

// left returns why a scene's namespace is still there, and nothing if it is gone.
func (s *side) left(ctx context.Context, namespace string) (string, error) {
	ns, err := s.client.CoreV1().Namespaces().Get(ctx, namespace, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	why := []string{string(ns.Status.Phase)}
	for _, c := range ns.Status.Conditions {
		if c.Status == v1.ConditionTrue {
			why = append(why, c.Message)
		}
	}
	return strings.Join(why, ", "), nil
}
