package kubelet

import (
	"context"

	authenticationv1 "k8s.io/api/authentication/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"

	"wherry.dev/internal/kubelet/credential"
	"wherry.dev/internal/kubelet/podops"
)

// credentialPlugins loads the image credential provider plugins; nil without any.
func (k *Kubelet) credentialPlugins() (podops.CredentialPlugins, error) {
	if k.cfg.CredentialProviderConfig == "" {
		return nil, nil
	}
	var accounts credential.Accounts
	if k.deps.Client != nil {
		accounts = serviceAccounts{k.deps.Client}
	}
	return credential.Load(k.cfg.CredentialProviderConfig, k.cfg.CredentialProviderBinDir, accounts)
}

// maxPulls is how many images are pulled at the same time, 0 for any number.
func (k *Kubelet) maxPulls() int {
	if ptr.Deref(k.cfg.SerializeImagePulls, false) {
		return 1
	}
	return int(ptr.Deref(k.cfg.MaxParallelImagePulls, 0))
}

// serviceAccounts asks the API server for accounts, and for tokens bound to pods.
type serviceAccounts struct{ client kubernetes.Interface }

func (s serviceAccounts) ServiceAccount(ctx context.Context, namespace, name string) (*v1.ServiceAccount, error) {
	return s.client.CoreV1().ServiceAccounts(namespace).Get(ctx, name, metav1.GetOptions{})
}

func (s serviceAccounts) Token(ctx context.Context, pod *v1.Pod, account *v1.ServiceAccount, audience string) (string, error) {
	req := &authenticationv1.TokenRequest{
		ObjectMeta: metav1.ObjectMeta{UID: account.UID},
		Spec: authenticationv1.TokenRequestSpec{
			Audiences:      []string{audience},
			BoundObjectRef: &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Pod", Name: pod.Name, UID: pod.UID},
		},
	}
	got, err := s.client.CoreV1().ServiceAccounts(account.Namespace).CreateToken(ctx, account.Name, req, metav1.CreateOptions{})
	if err != nil {
		return "", err
	}
	return got.Status.Token, nil
}
