package storage

import (
	"context"
	"fmt"
	"sync"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/server/healthz"
	"k8s.io/apiserver/pkg/server/options/encryptionconfig"
	"k8s.io/apiserver/pkg/server/options/encryptionconfig/controller"
	"k8s.io/apiserver/pkg/server/options/encryptionconfig/metrics"
	"k8s.io/apiserver/pkg/storage/value"
	"k8s.io/apiserver/pkg/storage/value/encrypt/identity"
)

// Encryption says how objects are encrypted on their way to etcd.
type Encryption struct {
	// File has an EncryptionConfiguration (apiserver.config.k8s.io/v1). If empty, objects are stored as
	// they are.
	File string
	// Reload reads the file again within a minute of a change. If the new one is wrong, or its KMS
	// plugins do not answer, the present one stays in force, and the log says why.
	Reload bool
	// ServerID names this server in metrics.
	ServerID string
}

// encryption is an Encryption in force. A nil one encrypts nothing.
type encryption struct {
	transformers value.ResourceTransformers
	checks       []healthz.HealthChecker
	cancel       context.CancelFunc // ends connections to KMS plugins
	reloads      sync.WaitGroup
}

func openEncryption(ctx context.Context, cfg Encryption) (*encryption, error) {
	if cfg.File == "" {
		return nil, nil
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx)) // until close
	first, endFirst := context.WithCancel(ctx)                    // until the next configuration is in force
	loaded, err := encryptionconfig.LoadEncryptionConfig(first, cfg.File, cfg.Reload, cfg.ServerID)
	if err != nil {
		endFirst()
		cancel()
		return nil, fmt.Errorf("--encryption-provider-config: %w", err)
	}
	metrics.RecordEncryptionConfigLastConfigInfo(cfg.ServerID, loaded.EncryptionFileContentHash)
	e := &encryption{transformers: encryptionconfig.StaticTransformers(loaded.Transformers), checks: loaded.HealthChecks}
	e.cancel = func() { endFirst(); cancel() }
	if !cfg.Reload {
		return e, nil
	}
	// With reloads, the library makes one health check of all plugins.
	dynamic := encryptionconfig.NewDynamicTransformers(
		loaded.Transformers, loaded.HealthChecks[0], endFirst, loaded.KMSCloseGracePeriod)
	e.transformers, e.checks = dynamic, []healthz.HealthChecker{dynamic}
	reload := controller.NewDynamicEncryptionConfiguration("encryption-provider-config-automatic-reload-controller",
		cfg.File, dynamic, loaded.EncryptionFileContentHash, cfg.ServerID)
	e.reloads.Go(func() { reload.Run(ctx) })
	return e, nil
}

func (e *encryption) close() {
	if e != nil {
		e.cancel()
		e.reloads.Wait()
	}
}

// transformer returns what encrypts and decrypts the objects of a resource.
func (e *encryption) transformer(r schema.GroupResource) value.Transformer {
	if e == nil {
		return identity.NewEncryptCheckTransformer()
	}
	return &encrypting{e.transformers.TransformerForResource(r), r}
}

// encrypting says in an error of the library what could not be done: those of KMS plugins do not.
type encrypting struct {
	value.Transformer
	resource schema.GroupResource
}

// TransformToStorage implements value.Transformer.
func (t *encrypting) TransformToStorage(ctx context.Context, data []byte, about value.Context) ([]byte, error) {
	out, err := t.Transformer.TransformToStorage(ctx, data, about)
	if err != nil {
		return nil, fmt.Errorf("cannot encrypt %s: %w; see kms-providers in /readyz?verbose, and --encryption-provider-config",
			t.resource, err)
	}
	return out, nil
}

// EncryptionChecks returns the health checks of the KMS plugins that encrypt objects.
func (b *Backend) EncryptionChecks() []healthz.HealthChecker {
	if b.encryption == nil {
		return nil
	}
	return b.encryption.checks
}
