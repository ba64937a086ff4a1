package daemon

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"

	"wherry.dev/internal/trace"
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
	answers := d.askServers(r.Context(), r.URL.Path)
	if len(answers) == 0 {
		return false
	}
	w.Header().Set("Content-Type", "application/json")
	if _, err := w.Write(answers[0]); err != nil {
		klog.FromContext(r.Context()).V(2).Info("Cannot pass on an answer", "err", err)
	}
	return true
}

// askServers returns what the other servers that have something to say answer at a path.
func (d *Daemon) askServers(ctx context.Context, path string) (answers [][]byte) {
	ctx, cancel := context.WithTimeout(ctx, forwardPatience)
	defer cancel()
	others, err := d.otherServers(ctx)
	if err != nil {
		klog.FromContext(ctx).Info("The other servers are not known", "err", err)
		return nil
	}
	for _, server := range others {
		answer, err := d.askServer(ctx, server, path)
		if err != nil {
			klog.FromContext(ctx).Info("Another server cannot be asked", "server", server, "path", path, "err", err)
		} else if answer != nil {
			answers = append(answers, answer)
		}
	}
	return answers
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
	return othersIn(slice, &d.cfg), nil
}

// askServer asks one server, as an administrator; nil if it has nothing to say.
func (d *Daemon) askServer(ctx context.Context, server, path string) ([]byte, error) {
	cfg, err := clientcmd.BuildConfigFromFlags("", d.cfg.Kubeconfig())
	if err != nil {
		return nil, err
	}
	cfg.ServerName = serverName
	client, err := rest.HTTPClientFor(cfg)
	if err != nil {
		return nil, err
	}
	defer client.CloseIdleConnections()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+server+"/"+strings.TrimPrefix(path, "/"), http.NoBody)
	if err != nil {
		return nil, err
	}
	req.Header.Set(askedForHeader, d.cfg.NodeName)
	resp, err := client.Do(req)
	if err != nil {
		return nil, err
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode != http.StatusOK {
		return nil, nil
	}
	return io.ReadAll(resp.Body)
}

// tracePath is where servers tell each other what they know of an object, followed by its UID.
const tracePath = "/debug/traces/"

// serveTrace tells what this process knows of an object.
func (d *Daemon) serveTrace(w http.ResponseWriter, r *http.Request) {
	t, ok := d.traces.Pod(strings.TrimPrefix(r.URL.Path, tracePath))
	if !ok {
		http.Error(w, errNoTrace.Error(), http.StatusNotFound)
		return
	}
	answer(w, t)
}

// tracesElsewhere returns what the other servers know of an object: one has stored it, perhaps, and another one scheduled it.
func (d *Daemon) tracesElsewhere(ctx context.Context, uid string) (out []trace.Trace) {
	if !d.several || uid == "" || d.serving.Load() == nil {
		return nil
	}
	for _, doc := range d.askServers(ctx, tracePath+uid) {
		var t trace.Trace
		if err := json.Unmarshal(doc, &t); err == nil {
			out = append(out, t)
		}
	}
	return out
}
