package clusterinfo

import (
	"context"
	"fmt"
	"maps"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	coreinformers "k8s.io/client-go/informers/core/v1"
	clientset "k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	bootstrap "k8s.io/cluster-bootstrap/token/api"
	"k8s.io/cluster-bootstrap/token/jws"
	"k8s.io/klog/v2"

	"wherry.dev/internal/api/cluster"
	"wherry.dev/internal/controller"
)

// Config says what is published. Without a server only what somebody else has published is signed, as upstream does.
type Config struct {
	// Server is the URL at which nodes reach the API server, CA the authority of its certificate, in PEM.
	Server string
	CA     []byte
	// Facts are what nodes have to know; nil publishes none.
	Facts *cluster.Facts
}

// Signer keeps the two config maps, and signs the one that is public. Create one with NewSigner.
type Signer struct {
	cfg     Config
	client  clientset.Interface
	secrets cache.SharedIndexInformer
	maps    []cache.SharedIndexInformer
	loop    *controller.Loop
}

// NewSigner returns the controller. It writes as client and watches config maps as reader.
func NewSigner(client, reader clientset.Interface, cfg Config) (*Signer, error) {
	c := &Signer{cfg: cfg, client: client, secrets: tokens(reader)}
	c.loop = controller.NewLoop("bootstrap_signer", c.reconcile)
	if err := c.loop.Watch(c.secrets, func(_, _ any) { c.loop.Add(cluster.InfoName) }); err != nil {
		return nil, err
	}
	for _, m := range []struct{ namespace, name string }{{cluster.InfoNamespace, cluster.InfoName}, {cluster.FactsNamespace, cluster.FactsName}} {
		informer := coreinformers.NewFilteredConfigMapInformer(reader, m.namespace, 0, cache.Indexers{}, func(o *metav1.ListOptions) {
			o.FieldSelector = fields.OneTermEqualSelector("metadata.name", m.name).String()
		})
		if err := c.loop.Watch(informer, func(_, _ any) { c.loop.Add(m.name) }); err != nil {
			return nil, err
		}
		c.maps = append(c.maps, informer)
	}
	return c, nil
}

// Run keeps the config maps until ctx ends.
func (c *Signer) Run(ctx context.Context) error {
	c.loop.Add(cluster.InfoName)
	c.loop.Add(cluster.FactsName)
	return c.loop.RunWith(ctx, append(c.maps, c.secrets)...)
}

func (c *Signer) reconcile(ctx context.Context, name string) error {
	if name == cluster.FactsName {
		if c.cfg.Facts == nil {
			return nil
		}
		return c.keep(ctx, cluster.FactsNamespace, name, func(map[string]string) (map[string]string, error) { return c.cfg.Facts.Data(), nil })
	}
	return c.keep(ctx, cluster.InfoNamespace, name, func(have map[string]string) (map[string]string, error) {
		return c.info(klog.FromContext(ctx), have)
	})
}

// info returns what cluster-info should hold: a kubeconfig, and a signature of it by each token.
func (c *Signer) info(log klog.Logger, have map[string]string) (map[string]string, error) {
	want := map[string]string{}
	for k, v := range have {
		if !strings.HasPrefix(k, bootstrap.JWSSignatureKeyPrefix) {
			want[k] = v
		}
	}
	if c.cfg.Server != "" {
		kubeconfig := clientcmdapi.NewConfig()
		kubeconfig.Clusters[""] = &clientcmdapi.Cluster{Server: c.cfg.Server, CertificateAuthorityData: c.cfg.CA}
		text, err := clientcmd.Write(*kubeconfig)
		if err != nil {
			return nil, err
		}
		want[cluster.InfoKey] = string(text)
	}
	text, ok := want[cluster.InfoKey]
	if !ok {
		return nil, nil // somebody will publish it
	}
	now := time.Now()
	for _, obj := range c.secrets.GetStore().List() {
		s, ok := obj.(*v1.Secret)
		if !ok {
			continue
		}
		t, err := parseToken(s)
		if err != nil || !t.signs || t.ended(now) {
			continue
		}
		signature, err := jws.ComputeDetachedSignature(text, t.id, t.secret)
		if err != nil {
			log.Error(err, "Cannot sign with a bootstrap token", "secret", klog.KObj(s))
			continue
		}
		want[bootstrap.JWSSignatureKeyPrefix+t.id] = signature
	}
	return want, nil
}

// keep makes a config map hold what data returns for what it holds now; nil leaves it alone.
func (c *Signer) keep(ctx context.Context, namespace, name string, data func(have map[string]string) (map[string]string, error)) error {
	api := c.client.CoreV1().ConfigMaps(namespace)
	have, err := api.Get(ctx, name, metav1.GetOptions{})
	missing := apierrors.IsNotFound(err)
	if err != nil && !missing {
		return fmt.Errorf("config map %s/%s: %w", namespace, name, err)
	}
	want, err := data(have.Data)
	switch {
	case err != nil:
	case want == nil, !missing && maps.Equal(want, have.Data):
		return nil
	case missing:
		_, err = api.Create(ctx, &v1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}, Data: want}, metav1.CreateOptions{})
	default:
		next := have.DeepCopy()
		next.Data = want
		_, err = api.Update(ctx, next, metav1.UpdateOptions{})
	}
	if err != nil {
		return fmt.Errorf("config map %s/%s: %w", namespace, name, err)
	}
	return nil
}
