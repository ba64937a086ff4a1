package kubelet

import (
	"context"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"

	"wherry.dev/internal/kubelet/credential"
	"wherry.dev/internal/kubelet/identity"
	"wherry.dev/internal/kubelet/podops"
)

// credentialPlugins loads the image credential provider plugins; nil if there are none.
func (k *Kubelet) credentialPlugins(tokens *identity.TokenSource) (podops.CredentialPlugins, error) {
	if k.cfg.CredentialProviderConfig == "" {
		return nil, nil
	}
	var accounts credential.Accounts
	if k.deps.Client != nil {
		accounts = serviceAccounts{k.deps.Client, tokens}
	}
	return credential.Load(k.cfg.CredentialProviderConfig, k.cfg.CredentialProviderBinDir, accounts)
}

// maxPulls returns how many images are pulled at the same time, 0 for no limit.
func (k *Kubelet) maxPulls() int {
	if ptr.Deref(k.cfg.SerializeImagePulls, false) {
		return 1
	}
	return int(ptr.Deref(k.cfg.MaxParallelImagePulls, 0))
}

// serviceAccounts asks the API server for accounts, and for tokens bound to pods. Tokens are kept,
// because a plugin's answer to a token is valid for that token only.
type serviceAccounts struct {
	client kubernetes.Interface
	tokens *identity.TokenSource
}

func (s serviceAccounts) ServiceAccount(ctx context.Context, namespace, name string) (*v1.ServiceAccount, error) {
	return s.client.CoreV1().ServiceAccounts(namespace).Get(ctx, name, metav1.GetOptions{})
}

func (s serviceAccounts) Token(ctx context.Context, pod *v1.Pod, account *v1.ServiceAccount, audience string) (string, error) {
	return s.tokens.AccountToken(ctx, pod, account.UID, audience)
}
