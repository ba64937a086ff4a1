package servers

import (
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// WriteKubeconfig writes a file by which a program reaches a server as cfg does: its address, its token, and whether its
// certificate is looked at.
func WriteKubeconfig(path string, cfg *rest.Config) error {
	return clientcmd.WriteToFile(clientcmdapi.Config{
		Clusters:  map[string]*clientcmdapi.Cluster{"c": {Server: cfg.Host, InsecureSkipTLSVerify: cfg.Insecure}},
		AuthInfos: map[string]*clientcmdapi.AuthInfo{"u": {Token: cfg.BearerToken}},
		Contexts:  map[string]*clientcmdapi.Context{"x": {Cluster: "c", AuthInfo: "u"}}, CurrentContext: "x",
	}, path)
}
