package main

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"os"
	"path/filepath"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

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
	err = clientcmd.WriteToFile(clientcmdapi.Config{
		Clusters:  map[string]*clientcmdapi.Cluster{"c": {Server: s.api.Config.Host, InsecureSkipTLSVerify: true}},
		AuthInfos: map[string]*clientcmdapi.AuthInfo{"u": {Token: s.api.Config.BearerToken}},
		Contexts:  map[string]*clientcmdapi.Context{"x": {Cluster: "c", AuthInfo: "u"}}, CurrentContext: "x",
	}, kubeconfig)
	if err != nil {
		return nil, err
	}
	crt, key, err := authority(dir)
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
		"--service-account-private-key-file", filepath.Join(dir, "sa.key"), "--root-ca-file", crt,
		"--cluster-signing-cert-file", crt, "--cluster-signing-key-file", key, "--kube-api-qps=1000", "--kube-api-burst=2000")...)
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

// authority makes a certificate authority, and returns its files.
func authority(dir string) (crt, key string, err error) {
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return "", "", err
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "ca"}, NotAfter: time.Now().Add(24 * time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &private.PublicKey, private)
	if err != nil {
		return "", "", err
	}
	encoded, err := x509.MarshalECPrivateKey(private)
	if err != nil {
		return "", "", err
	}
	crt, key = filepath.Join(dir, "ca.crt"), filepath.Join(dir, "ca.key")
	return crt, key, errors.Join(
		os.WriteFile(crt, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600),
		os.WriteFile(key, pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: encoded}), 0o600),
	)
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
