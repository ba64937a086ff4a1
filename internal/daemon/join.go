package daemon

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/version"
	clientset "k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	kubeversion "k8s.io/component-base/version"
	"k8s.io/klog/v2"

	"wherry.dev/internal/api/cluster"
	nodestate "wherry.dev/internal/api/nodes"
	"wherry.dev/internal/apiserver"
	"wherry.dev/internal/config"
	"wherry.dev/internal/controller/clusterdns"
	"wherry.dev/internal/kubelet/certificates"
	"wherry.dev/internal/record"
)

// How long a node waits for answers of its server: before it joins, and for what it may know from an earlier start.
const (
	joinPatience  = 15 * time.Second
	factsPatience = 5 * time.Second
)

// joined is somebody else's API server, as the components of this process reach it.
type joined struct {
	config  *rest.Config
	hangUp  func()
	servers *serverList
	// foreign: the server is not one of Wherry's, and may not let nodes read what their network needs.
	foreign bool
	vni     uint32
	away    bool // it did not answer when this process started
}

func (j *joined) client() *rest.Config {
	cfg := rest.CopyConfig(j.config)
	cfg.QPS, cfg.ContentType = -1, "application/vnd.kubernetes.protobuf" // the API server's own fairness limits requests
	return cfg
}

// invitation is what a node needs to join, all of it checked.
type invitation struct {
	server string
	ca     []byte
	token  cluster.Token
}

// Files of a node that has joined, in its folder pki.
func pkiFile(cfg *config.Config, name string) string { return filepath.Join(cfg.DataDir, "pki", name) }

func nodeKubeconfig(cfg *config.Config) string { return pkiFile(cfg, "node.kubeconfig") }
func joinKubeconfig(cfg *config.Config) string { return pkiFile(cfg, "join.kubeconfig") }
func clusterCA(cfg *config.Config) string      { return pkiFile(cfg, "cluster-ca.crt") }

// factsFile is where a node keeps what the server last told it.
func factsFile(dataDir string) string { return filepath.Join(dataDir, "cluster.json") }

// hasFacts reports whether somebody else's server has told an instance about its cluster.
func hasFacts(dataDir string) bool {
	_, err := os.Stat(factsFile(dataDir))
	return err == nil
}

// HasJoined reports whether a data dir is that of a node that has joined somebody else's server.
func HasJoined(dataDir string) bool {
	_, err := os.Stat(nodeKubeconfig(&config.Config{DataDir: dataDir}))
	return err == nil
}

// ServerOf returns the URL of the server that the node of a data dir has joined; "" if it has joined none.
func ServerOf(dataDir string) string { return lastStart(dataDir).Server }

// lastStart returns the configuration of the last start on a data dir; the zero value if there was none.
func lastStart(dataDir string) config.Config {
	var cfg config.Config
	if _, err := record.Read(instanceFile(dataDir), &cfg); err != nil {
		return config.Config{}
	}
	return cfg
}

// ServerURL returns the URL of an API server, of which the scheme and the port may be left out.
func ServerURL(s string) (string, error) {
	if !strings.Contains(s, "://") {
		s = "https://" + s
	}
	u, err := url.Parse(s)
	if err != nil || u.Scheme != "https" || u.Hostname() == "" || strings.Trim(u.Path, "/") != "" || u.RawQuery != "" {
		return "", fmt.Errorf("%q is not the URL of an API server, such as https://192.0.2.1:6443", s)
	}
	port := u.Port()
	if port == "" {
		port = "6443"
	}
	return "https://" + net.JoinHostPort(u.Hostname(), port), nil
}

// invite checks, before anything is made, that this node can join the server, or that it has joined it before.
func (d *Daemon) invite(ctx context.Context) error {
	before, err := clientcmd.LoadFromFile(nodeKubeconfig(&d.cfg))
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return fmt.Errorf("%w; restore it, or remove the node with `wherry down --purge`", err)
	default:
		return d.inviteAgain(before)
	}
	if d.token == "" {
		return errors.New("--token is needed to join a cluster for the first time; `wherry token create` on the server prints one")
	}
	token, err := cluster.ParseToken(d.token)
	if err != nil {
		return fmt.Errorf("--token: %w", err)
	}
	return d.look(ctx, d.cfg.Server, token)
}

// look makes the invitation of a server that the token fits.
func (d *Daemon) look(ctx context.Context, server string, token cluster.Token) error {
	d.progress("looking at " + server)
	ctx, cancel := context.WithTimeout(ctx, joinPatience)
	defer cancel()
	ca, err := discover(ctx, server, token)
	if err != nil {
		return fmt.Errorf("cannot join %s: %w", server, err)
	}
	inv := &invitation{server: server, ca: ca, token: token}
	skew := checkSkew
	if d.cfg.Role.HasServer() {
		skew = checkServerSkew
	}
	if err := inv.check(ctx, d.cfg.NodeName, skew); err != nil {
		return fmt.Errorf("cannot join %s: %w", server, err)
	}
	d.invitation = inv
	return nil
}

// inviteAgain checks a node that has joined before. Its server may have another address by now; its authority is the same.
func (d *Daemon) inviteAgain(before *clientcmdapi.Config) error {
	server := ""
	for _, c := range before.Clusters {
		server = c.Server
	}
	return d.checkJoined(clusterCA(&d.cfg), server)
}

// checkJoined refuses a token of another cluster than the one that this instance has joined.
func (d *Daemon) checkJoined(caFile, server string) error {
	if d.token == "" {
		return nil
	}
	token, err := cluster.ParseToken(d.token)
	if err != nil {
		return fmt.Errorf("--token: %w", err)
	}
	ca, err := os.ReadFile(caFile)
	if err == nil {
		err = token.CheckCA(ca)
	}
	if err != nil {
		return fmt.Errorf("this node has joined another cluster before, at %s: take it out with `wherry down --purge` first: %w", server, err)
	}
	return nil // it has a certificate, and needs no token
}

// discover asks a server for its cluster's certificate authority, and checks it against the token: only then is anything
// believed.
func discover(ctx context.Context, server string, token cluster.Token) ([]byte, error) {
	client := &http.Client{Transport: &http.Transport{
		TLSClientConfig: &tls.Config{InsecureSkipVerify: true, MinVersion: tls.VersionTLS12}, //nolint:gosec // what it says is checked by the token's hash
	}}
	defer client.CloseIdleConnections()
	path := "/api/v1/namespaces/" + cluster.InfoNamespace + "/configmaps/" + cluster.InfoName
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, server+path, nil)
	if err != nil {
		return nil, err
	}
	resp, err := client.Do(req)
	if err != nil {
		return nil, fmt.Errorf("it does not answer: %w", cause(err))
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	if err != nil {
		return nil, fmt.Errorf("it does not answer: %w", err)
	}
	var cm v1.ConfigMap
	if resp.StatusCode != http.StatusOK {
		var status metav1.Status
		if json.Unmarshal(body, &status) != nil || status.Kind != "Status" {
			return nil, fmt.Errorf("it answers %s, and not as an API server of Kubernetes does", resp.Status)
		}
		return nil, fmt.Errorf("it has no config map %s/%s for those who join, as the servers of Wherry and kubeadm have: %s",
			cluster.InfoNamespace, cluster.InfoName, status.Message)
	}
	if err := json.Unmarshal(body, &cm); err != nil || cm.Kind != "ConfigMap" {
		return nil, errors.New("it does not answer as an API server of Kubernetes does")
	}
	kubeconfig, err := clientcmd.Load([]byte(cm.Data[cluster.InfoKey]))
	if err != nil {
		return nil, fmt.Errorf("its config map %s/%s: %w", cluster.InfoNamespace, cluster.InfoName, err)
	}
	for _, c := range kubeconfig.Clusters {
		return c.CertificateAuthorityData, token.CheckCA(c.CertificateAuthorityData)
	}
	return nil, fmt.Errorf("its config map %s/%s names no cluster", cluster.InfoNamespace, cluster.InfoName)
}

// cause returns an error without the request that it happened to.
func cause(err error) error {
	if u, ok := errors.AsType[*url.Error](err); ok {
		return u.Err
	}
	return err
}

func (i *invitation) client() (clientset.Interface, error) {
	return clientset.NewForConfig(&rest.Config{
		Host: i.server, BearerToken: i.token.Bearer(), TLSClientConfig: rest.TLSClientConfig{CAData: i.ca}, WarningHandler: rest.NoWarnings{},
	})
}

// check asks the server, whose authority is known, whether the token is good, the versions fit and the name is free.
func (i *invitation) check(ctx context.Context, name string, skew func(server, own string) error) error {
	client, err := i.client()
	if err != nil {
		return err
	}
	_, err = client.AuthenticationV1().SelfSubjectReviews().Create(ctx, &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
	var wrongName x509.HostnameError
	switch {
	case apierrors.IsUnauthorized(err):
		return fmt.Errorf("it does not know the token %s, or the token's time is over; make another one on the server with `wherry token create`", i.token.ID)
	case errors.As(err, &wrongName):
		return fmt.Errorf("its certificate is for other names: %w; use one of them, or start the server with --apiserver-arg tls-san=NAME", wrongName)
	case err != nil && !apierrors.IsForbidden(err):
		return cause(err)
	}
	info, err := client.Discovery().ServerVersion()
	if err != nil {
		return fmt.Errorf("its version: %w", cause(err))
	}
	if err := skew(info.GitVersion, kubeversion.Get().GitVersion); err != nil {
		return err
	}
	n, err := client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return nil //nolint:nilerr // there is none, or the server does not tell everybody
	}
	if nodestate.IsReady(n) {
		return fmt.Errorf("it has a node %s already, which is Ready; give this one another name with --node-name, or take the other one out first", name)
	}
	return nil
}

// mostBehind is how many minor versions a kubelet may be behind its API server; it may not be ahead
// (https://kubernetes.io/releases/version-skew-policy/).
const mostBehind = 3

func checkSkew(server, own string) error {
	s, err := version.ParseGeneric(server)
	if err != nil {
		return fmt.Errorf("its version %q: %w", server, err)
	}
	o, err := version.ParseGeneric(own)
	if err != nil {
		return fmt.Errorf("the version of this program %q: %w", own, err)
	}
	switch behind := int(s.Minor()) - int(o.Minor()); {
	case s.Major() != o.Major():
		return fmt.Errorf("it is of version %s, and this node of %s", server, own)
	case behind < 0:
		return fmt.Errorf("it is of version %s, and this node of %s: a node must not be newer than its server; upgrade the server first", server, own)
	case behind > mostBehind:
		return fmt.Errorf("it is of version %s, and this node of %s: a node may be %d minor versions older; use a newer program here", server, own, mostBehind)
	}
	return nil
}

// checkServerSkew compares the versions of two servers of a cluster, which may be one minor version apart.
func checkServerSkew(other, own string) error {
	s, err := version.ParseGeneric(other)
	if err != nil {
		return fmt.Errorf("the version of a server %q: %w", other, err)
	}
	o, err := version.ParseGeneric(own)
	if err != nil {
		return fmt.Errorf("the version of a server %q: %w", own, err)
	}
	if apart := int(s.Minor()) - int(o.Minor()); s.Major() != o.Major() || apart < -1 || apart > 1 {
		return fmt.Errorf("the servers of a cluster may be one minor version apart, and these are of %s and %s", other, own)
	}
	return nil
}

// How soon a node notices that its connection to the server has died without a word: client-go asks after so many seconds of
// silence, and waits so many for an answer. Its own defaults are 30 and 15.
var connectionChecks = map[string]string{"HTTP2_READ_IDLE_TIMEOUT_SECONDS": "5", "HTTP2_PING_TIMEOUT_SECONDS": "3"}

func checkConnections() error {
	for name, value := range connectionChecks {
		if os.Getenv(name) != "" {
			continue
		}
		if err := os.Setenv(name, value); err != nil {
			return err
		}
	}
	return nil
}

// connect gets the node its certificate, if it has none, and what it has to know of the cluster.
func (d *Daemon) connect(ctx context.Context) (err error) {
	if err := checkConnections(); err != nil {
		return err
	}
	paths := certificates.Paths{Kubeconfig: nodeKubeconfig(&d.cfg), CertDir: filepath.Join(d.cfg.DataDir, "pki")}
	if d.invitation != nil {
		d.progress("joining " + d.cfg.Server)
		if err := d.writeInvitation(); err != nil {
			return err
		}
		defer func() {
			err = errors.Join(err, os.Remove(joinKubeconfig(&d.cfg))) // it holds the token
		}()
		paths.Bootstrap = joinKubeconfig(&d.cfg)
	} else if err := d.moveServer(); err != nil {
		return err
	}
	d.joined = &joined{}
	if d.joined.servers, err = newServerList(d.cfg.DataDir, d.cfg.NodeName, d.cfg.Server); err != nil {
		return err
	}
	if d.joined.config, d.joined.hangUp, err = d.joined.servers.client(ctx, paths, d.cfg.NodeName); err != nil {
		return fmt.Errorf("join %s: %w", d.cfg.Server, err)
	}
	return d.learn(ctx)
}

func (d *Daemon) writeInvitation() error {
	if err := os.MkdirAll(filepath.Join(d.cfg.DataDir, "pki"), 0o700); err != nil {
		return err
	}
	if err := record.WriteFile(clusterCA(&d.cfg), d.invitation.ca, 0o644); err != nil {
		return err
	}
	cfg := clientcmdapi.NewConfig()
	cfg.Clusters["cluster"] = &clientcmdapi.Cluster{Server: d.invitation.server, CertificateAuthority: clusterCA(&d.cfg)}
	cfg.AuthInfos["token"] = &clientcmdapi.AuthInfo{Token: d.invitation.token.Bearer()}
	cfg.Contexts["join"] = &clientcmdapi.Context{Cluster: "cluster", AuthInfo: "token"}
	cfg.CurrentContext = "join"
	data, err := clientcmd.Write(*cfg)
	if err != nil {
		return err
	}
	return record.WriteFile(joinKubeconfig(&d.cfg), data, 0o600)
}

// moveServer makes the node's kubeconfig name the server that was given.
func (d *Daemon) moveServer() error {
	cfg, err := clientcmd.LoadFromFile(nodeKubeconfig(&d.cfg))
	if err != nil {
		return err
	}
	changed := false
	for _, c := range cfg.Clusters {
		changed = changed || c.Server != d.cfg.Server
		c.Server = d.cfg.Server
	}
	if !changed {
		return nil
	}
	data, err := clientcmd.Write(*cfg)
	if err != nil {
		return err
	}
	return record.WriteFile(nodeKubeconfig(&d.cfg), data, 0o600)
}

// learn asks the server for what the cluster's nodes have to agree on. A node that was told before starts without an answer,
// so that its pods run on while the server is away.
func (d *Daemon) learn(ctx context.Context) error {
	client, _, err := d.as(nodeUser(d.cfg.NodeName))
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, factsPatience)
	defer cancel()
	facts, err := d.askFacts(ctx, client)
	if err == nil {
		err = record.Write(factsFile(d.cfg.DataDir), 1, facts.Data())
	} else if told, rerr := readFacts(d.cfg.DataDir); rerr == nil && !apierrors.IsNotFound(err) {
		klog.FromContext(ctx).Error(err, "The server does not say what the cluster's networks are; using what it said before", "server", d.cfg.Server)
		facts, err, d.joined.away = told, nil, true
		d.progress(d.cfg.Server + " does not answer; starting with what it said before, and waiting for it")
	}
	if err != nil {
		return fmt.Errorf("learn the networks of the cluster from %s: %w", d.cfg.Server, err)
	}
	if err := d.adopt(facts); err != nil {
		return err
	}
	if err := checkMode(&d.cfg); err != nil {
		return err
	}
	if err := d.checkRights(ctx, client); err != nil {
		return err
	}
	if err := d.checkTaken(ctx, client); err != nil {
		return err
	}
	return record.Write(instanceFile(d.cfg.DataDir), 1, d.cfg) // whoever takes the node down has to know the networks
}

// askFacts asks the server. One that is not Wherry's has no facts: then the flags of this node have to say them.
func (d *Daemon) askFacts(ctx context.Context, client clientset.Interface) (f cluster.Facts, err error) {
	cm, err := client.CoreV1().ConfigMaps(cluster.FactsNamespace).Get(ctx, cluster.FactsName, metav1.GetOptions{})
	if err == nil {
		if f, err = cluster.FromData(cm.Data); err != nil {
			return f, fmt.Errorf("config map %s/%s: %w", cluster.FactsNamespace, cluster.FactsName, err)
		}
		return f, nil
	}
	if !apierrors.IsNotFound(err) && !apierrors.IsForbidden(err) {
		return f, cause(err)
	}
	d.joined.foreign = true
	if d.cfg.ClusterCIDR == "" {
		return f, fmt.Errorf("only servers of Wherry say them: give --cluster-cidr, the network of all pods, and --service-cidr and --network-mode if they differ from the defaults: %w", err)
	}
	f = cluster.Facts{PodNetworks: d.cfg.ClusterNetworks(), Domain: d.cfg.ClusterDomain, DNS: d.cfg.ClusterDNS, Mode: d.cfg.NetworkMode, VNI: 1, Cloud: d.cfg.CloudProvider}
	first, second, err := config.ServiceNetworks(d.cfg.ServiceCIDR)
	if err != nil {
		return f, err
	}
	f.ServiceNetworks = append(f.ServiceNetworks, first)
	if second.IsValid() {
		f.ServiceNetworks = append(f.ServiceNetworks, second)
	}
	if len(f.DNS) > 0 {
		return f, nil
	}
	if svc, err := client.CoreV1().Services(clusterdns.Namespace).Get(ctx, clusterdns.Name, metav1.GetOptions{}); err == nil {
		f.DNS = svc.Spec.ClusterIPs
	}
	d.cfg.DNS = config.DNSNone // there is somebody else's
	return f, nil
}

func readFacts(dataDir string) (cluster.Facts, error) {
	var data map[string]string
	if _, err := record.Read(factsFile(dataDir), &data); err != nil {
		return cluster.Facts{}, err
	}
	return cluster.FromData(data)
}

// adopt makes the configuration say what the cluster has.
func (d *Daemon) adopt(f cluster.Facts) error {
	data := f.Data()
	c := &d.cfg
	c.ClusterCIDR, c.ServiceCIDR, c.ClusterDomain, c.NetworkMode = data["pod-networks"], data["service-networks"], f.Domain, f.Mode
	c.NodeMask4, c.NodeMask6, c.CloudProvider = f.Mask4, f.Mask6, cmp.Or(f.Cloud, c.CloudProvider)
	if d.joined != nil {
		d.joined.vni = f.VNI
	}
	if c.DNS == config.DNSNone || len(f.DNS) == 0 {
		c.DNS, c.ClusterDNS = config.DNSNone, f.DNS
		return nil
	}
	c.ClusterDNS = nil
	own, ok, err := c.DNSAddress()
	if err != nil {
		return err
	}
	if !ok || own.String() != f.DNS[0] { // the server's is not the built-in one
		c.DNS, c.ClusterDNS = config.DNSNone, f.DNS
	}
	return nil
}

// networkNeeds are what a node has to list and watch for services, names and ways to other nodes (the role
// wherry:node-network of Wherry's servers). Other servers let nodes read nodes and services only.
var networkNeeds = []schema.GroupResource{
	{Resource: "namespaces"}, {Resource: "pods"}, {Group: "discovery.k8s.io", Resource: "endpointslices"}, {Group: "networking.k8s.io", Resource: "networkpolicies"},
}

// checkRights refuses a server that does not let this node read what its network needs: it would wait for that for ever.
func (d *Daemon) checkRights(ctx context.Context, client clientset.Interface) error {
	if !d.joined.foreign || d.cfg.Proxy == config.NoProxy && d.cfg.NetworkMode == cluster.ModeNone {
		return nil
	}
	for _, r := range networkNeeds {
		review := &authorizationv1.SelfSubjectAccessReview{Spec: authorizationv1.SelfSubjectAccessReviewSpec{
			ResourceAttributes: &authorizationv1.ResourceAttributes{Verb: "list", Group: r.Group, Resource: r.Resource},
		}}
		answer, err := client.AuthorizationV1().SelfSubjectAccessReviews().Create(ctx, review, metav1.CreateOptions{})
		if err != nil {
			return fmt.Errorf("ask %s what this node may read: %w", d.cfg.Server, cause(err))
		}
		if !answer.Status.Allowed {
			return fmt.Errorf("%s does not let nodes read %s, which services and names need here: give the group %s the cluster role of docs/nodes.md, "+
				"or leave services, names and network to somebody else with --proxy none --network-mode none", d.cfg.Server, r, nodesGroup)
		}
	}
	return nil
}

// checkTaken refuses an address and port at which another node's kubelet is.
func (d *Daemon) checkTaken(ctx context.Context, client clientset.Interface) error {
	nodes, err := client.CoreV1().Nodes().List(ctx, metav1.ListOptions{ResourceVersion: "0"})
	if err != nil {
		return nil //nolint:nilerr // a server that is away, or that does not tell
	}
	own := d.cfg.NodeIPs()[0].String()
	for i := range nodes.Items {
		n := &nodes.Items[i]
		if n.Name == d.cfg.NodeName || !nodestate.IsReady(n) || n.Status.DaemonEndpoints.KubeletEndpoint.Port != int32(d.cfg.KubeletPort) {
			continue
		}
		if slices.ContainsFunc(n.Status.Addresses, func(a v1.NodeAddress) bool { return a.Type == v1.NodeInternalIP && a.Address == own }) {
			return fmt.Errorf("node %s has the address %s and the port %d already; give this one others with --node-ip or --kubelet-port", n.Name, own, d.cfg.KubeletPort)
		}
	}
	return nil
}

// unjoin removes what a join has made that failed, so that the next one begins anew.
func (d *Daemon) unjoin() error {
	if d.cfg.Role.HasServer() {
		if apiserver.HasData(d.cfg.DataDir) {
			return nil // it is one of them by now, and carries on with the next start
		}
		var errs []error
		for _, f := range d.accepted {
			errs = append(errs, removeIfThere(f))
		}
		return errors.Join(errs...)
	}
	files, err := filepath.Glob(pkiFile(&d.cfg, "kubelet-*"))
	if err != nil {
		return err
	}
	for _, f := range append(files, nodeKubeconfig(&d.cfg), joinKubeconfig(&d.cfg), clusterCA(&d.cfg), factsFile(d.cfg.DataDir), serversFile(d.cfg.DataDir)) {
		err = errors.Join(err, removeIfThere(f))
	}
	return err
}

func removeIfThere(file string) error {
	if err := os.Remove(file); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}
