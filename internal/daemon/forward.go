package daemon

import (
	"context"
	"io"
	"net/http"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"
)

const (
	// serversUser is a server that looks for the others.
	serversUser = "wherry:server"
	// askedForHeader marks requests that another server has passed on: they are not passed on again.
	askedForHeader = "X-Wherry-Asked-For"
	// forwardPatience is how long another server may take.
	forwardPatience = 5 * time.Second
)

// forward lets the server that can answer a request do so. Whoever made it may: that was checked here. It reports whether one
// did.
func (d *Daemon) forward(w http.ResponseWriter, r *http.Request) bool {
	ctx, cancel := context.WithTimeout(r.Context(), forwardPatience)
	defer cancel()
	others, err := d.otherServers(ctx)
	if err != nil {
		klog.FromContext(ctx).Info("The other servers are not known", "err", err)
		return false
	}
	for _, server := range others {
		if done, err := d.forwardTo(ctx, w, r, server); done {
			return true
		} else if err != nil {
			klog.FromContext(ctx).Info("Another server cannot be asked", "server", server, "path", r.URL.Path, "err", err)
		}
	}
	return false
}

// otherServers returns where the other servers that are there serve.
func (d *Daemon) otherServers(ctx context.Context) (out []string, err error) {
	client, _, err := d.as(serversUser, "system:masters")
	if err != nil {
		return nil, err
	}
	slice, err := client.DiscoveryV1().EndpointSlices(metav1.NamespaceDefault).Get(ctx, "kubernetes", metav1.GetOptions{ResourceVersion: "0"})
	if err != nil {
		return nil, err
	}
	own := hostPort(d.cfg.NodeIPs()[0].String(), d.cfg.SecurePort)
	return slices.DeleteFunc(serversIn(slice), func(s string) bool { return s == own }), nil
}

// forwardTo asks one server, as an administrator.
func (d *Daemon) forwardTo(ctx context.Context, w http.ResponseWriter, r *http.Request, server string) (done bool, err error) {
	cfg, err := clientcmd.BuildConfigFromFlags("", d.cfg.Kubeconfig())
	if err != nil {
		return false, err
	}
	cfg.ServerName = serverName
	client, err := rest.HTTPClientFor(cfg)
	if err != nil {
		return false, err
	}
	defer client.CloseIdleConnections()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+server+"/"+strings.TrimPrefix(r.URL.Path, "/"), http.NoBody)
	if err != nil {
		return false, err
	}
	req.Header.Set(askedForHeader, d.cfg.NodeName)
	resp, err := client.Do(req)
	if err != nil {
		return false, err
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode != http.StatusOK {
		return false, nil
	}
	w.Header().Set("Content-Type", resp.Header.Get("Content-Type"))
	_, err = io.Copy(w, resp.Body)
	return true, err
}
