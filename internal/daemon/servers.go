package daemon

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	bootstrap "k8s.io/cluster-bootstrap/token/api"
	kubeversion "k8s.io/component-base/version"
	"k8s.io/klog/v2"

	"wherry.dev/internal/api/cluster"
	"wherry.dev/internal/apiserver"
	"wherry.dev/internal/apiserver/storage"
	"wherry.dev/internal/record"
	"wherry.dev/internal/safepath"
)

// serversResource is what errors of those who join are about.
var serversResource = schema.GroupResource{Resource: "servers"}

// serverRequest is what a server sends that wants to join others.
type serverRequest struct {
	Name    string `json:"name"`    // of its node
	Address string `json:"address"` // host:port of its etcd, for others
	Token   string `json:"token"`   // ID.SECRET, which it came with
	Proof   string `json:"proof"`   // that the token is one for servers
	Version string `json:"version"` // of Kubernetes
	// Etcd are the URLs of the external etcd that it is to use; empty if it is to have one of its own.
	Etcd []string `json:"etcd,omitempty"`
}

// serverAnswer is what it gets.
type serverAnswer struct {
	apiserver.Welcome
	Facts map[string]string `json:"facts"`
}

const (
	// serverPatience is how long a server that joins waits until the others can take it: the first one starts again for
	// the second, and etcd takes one after the other.
	serverPatience = 2 * time.Minute
	// serverAgain is the pause between two attempts.
	serverAgain = 250 * time.Millisecond
	// answerFirst is how long the answer to a server takes on its way, before this one starts again.
	answerFirst = 100 * time.Millisecond
)

// hasJoinedServers reports whether this server is one of several already.
func (d *Daemon) hasJoinedServers() bool {
	if len(d.cfg.EtcdServers) > 0 {
		return hasFacts(d.cfg.DataDir)
	}
	return apiserver.HasData(d.cfg.DataDir) && apiserver.HasServers(d.cfg.DataDir)
}

// inviteServer checks, before anything is made, that this server can join others.
func (d *Daemon) inviteServer(ctx context.Context) error {
	dir := d.cfg.DataDir
	switch {
	case d.hasJoinedServers():
		return d.checkJoined(filepath.Join(dir, "pki", "ca.crt"), d.cfg.JoinServer)
	case apiserver.HasData(dir):
		return fmt.Errorf("--join-server: %s has the data of a cluster of its own, which would be lost; take it down with `wherry down --purge` first, or use another --data-dir", dir)
	case d.token == "":
		return errors.New("--token is needed to join other servers for the first time; `wherry token create --server` on one of them prints one")
	}
	token, err := cluster.ParseToken(d.token)
	if err != nil {
		return fmt.Errorf("--token: %w", err)
	}
	if token.Proof == "" {
		return errors.New("--token: it is one for nodes; `wherry token create --server`, on one of the servers, prints one for servers")
	}
	return d.look(ctx, d.cfg.JoinServer, token)
}

// joinServers asks the others for the cluster's keys and a place among them, and makes the folders of a server that starts
// with them.
func (d *Daemon) joinServers(ctx context.Context) error {
	inv := d.invitation
	d.progress("joining the servers at " + inv.server)
	client, err := inv.client()
	if err != nil {
		return err
	}
	body, err := json.Marshal(serverRequest{
		Name: d.cfg.NodeName, Address: d.peerAddress(), Token: inv.token.Bearer(), Proof: inv.token.Proof,
		Version: kubeversion.Get().GitVersion, Etcd: d.cfg.EtcdServers,
	})
	if err != nil {
		return err
	}
	var answer serverAnswer
	for end, said := time.Now().Add(serverPatience), ""; ; {
		result := client.CoreV1().RESTClient().Post().AbsPath(cluster.ServersPath).SetHeader("Content-Type", "application/json").Body(body).Do(ctx)
		err := result.Error() // with the words of the answer, which Raw would not have
		if err == nil {
			data, err := result.Raw()
			if err != nil {
				return fmt.Errorf("join %s: %w", inv.server, err)
			}
			if err = json.Unmarshal(data, &answer); err != nil {
				return fmt.Errorf("join %s: its answer: %w", inv.server, err)
			}
			break
		}
		status := apierrors.ReasonForError(err)
		passes := status == metav1.StatusReasonServiceUnavailable || status == metav1.StatusReasonUnknown || apierrors.IsTooManyRequests(err)
		if !passes || time.Now().After(end) || ctx.Err() != nil {
			return fmt.Errorf("cannot join %s: %w", inv.server, cause(err))
		}
		if text := cause(err).Error(); text != said {
			said = text
			d.progress("waiting for the servers: " + text)
		}
		if !pause(ctx, serverAgain) {
			return ctx.Err()
		}
	}
	facts, err := cluster.FromData(answer.Facts)
	if err == nil {
		err = answer.Check(d.cfg.DataDir, d.cfg.EncryptionConfig)
	}
	if err == nil {
		d.accepted, err = answer.Accept(d.cfg.DataDir)
	}
	if err == nil {
		if !hasFacts(d.cfg.DataDir) {
			d.accepted = append(d.accepted, factsFile(d.cfg.DataDir))
		}
		err = record.Write(factsFile(d.cfg.DataDir), 1, facts.Data())
	}
	if err != nil {
		return fmt.Errorf("join %s: %w", inv.server, err)
	}
	return nil
}

// peerAddress is where the etcds of other servers reach this one's.
func (d *Daemon) peerAddress() string { return hostPort(d.cfg.NodeIPs()[0].String(), d.cfg.PeerPort) }

// recall takes over what the cluster told this server when it joined.
func (d *Daemon) recall() error {
	facts, err := readFacts(d.cfg.DataDir)
	if err != nil {
		return fmt.Errorf("what the cluster told this server: %w", err)
	}
	if err := errors.Join(d.adopt(facts), checkMode(&d.cfg)); err != nil {
		return err
	}
	return record.Write(instanceFile(d.cfg.DataDir), 1, d.cfg) // whoever takes the node down has to know the networks
}

// welcome serves other servers that want to join. Whoever comes has a bootstrap token for servers (RBAC), and proves that
// somebody with the cluster's keys made it.
func (d *Daemon) welcome(w http.ResponseWriter, r *http.Request) {
	answer, err := d.welcomeServer(r)
	if err == nil {
		w.Header().Set("Content-Type", "application/json")
		if err := json.NewEncoder(w).Encode(answer); err != nil {
			klog.FromContext(r.Context()).Error(err, "A server that wants to join has gone away")
		}
		return
	}
	status, ok := errors.AsType[*apierrors.StatusError](err)
	if !ok {
		status = apierrors.NewInternalError(err)
	}
	klog.FromContext(r.Context()).Info("A server cannot join", "from", r.RemoteAddr, "reason", err.Error())
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(int(status.ErrStatus.Code))
	out := status.Status()
	out.Kind, out.APIVersion = "Status", "v1"
	_ = json.NewEncoder(w).Encode(out) // whoever does not listen any more has gone
}

func (d *Daemon) welcomeServer(r *http.Request) (*serverAnswer, error) {
	if r.Method != http.MethodPost {
		return nil, apierrors.NewMethodNotSupported(serversResource, r.Method)
	}
	api := d.serving.Load()
	if api == nil {
		return nil, apierrors.NewServiceUnavailable("this server is starting")
	}
	var q serverRequest
	if err := json.NewDecoder(http.MaxBytesReader(nil, r.Body, safepath.ConfigSize)).Decode(&q); err != nil {
		return nil, apierrors.NewBadRequest("the request of a server that joins: " + err.Error())
	}
	if err := d.checkServer(r.Context(), api, q); err != nil {
		return nil, err
	}
	ca, err := api.CA().Cert()
	if err != nil {
		return nil, err
	}
	info, err := d.clusterInfo(ca)
	if err != nil {
		return nil, err
	}
	welcome, err := api.Welcome(r.Context(), q.Name, q.Address)
	switch {
	case errors.Is(err, storage.ErrLone):
		if err := apiserver.WillHaveServers(d.cfg.DataDir); err != nil {
			return nil, err
		}
		d.startOver()
		return nil, apierrors.NewServiceUnavailable("the first server starts again, to have others")
	case errors.Is(err, storage.ErrBusy):
		return nil, apierrors.NewServiceUnavailable(err.Error())
	case err != nil:
		return nil, apierrors.NewConflict(serversResource, q.Name, err)
	}
	klog.FromContext(r.Context()).Info("Another server joins", "name", q.Name, "address", q.Address)
	return &serverAnswer{Welcome: welcome, Facts: info.Facts.Data()}, nil
}

// checkServer refuses who may not join.
func (d *Daemon) checkServer(ctx context.Context, api *apiserver.Server, q serverRequest) error {
	id, _, _ := strings.Cut(q.Token, ".")
	who, ok := genericapirequest.UserFrom(ctx)
	if !ok || who.GetName() != bootstrap.BootstrapUserPrefix+id {
		return apierrors.NewForbidden(serversResource, q.Name, errors.New("servers join with a token of `wherry token create --server`"))
	}
	if proves, err := api.ProvesServer(q.Token, q.Proof); err != nil || !proves {
		return apierrors.NewForbidden(serversResource, q.Name, errors.Join(err, errors.New("the token was not made by somebody who has the cluster's keys: use one of `wherry token create --server`")))
	}
	if err := checkServerSkew(kubeversion.Get().GitVersion, q.Version); err != nil {
		return apierrors.NewBadRequest(err.Error())
	}
	switch own := len(d.cfg.EtcdServers) == 0; {
	case own && len(q.Etcd) > 0:
		return apierrors.NewBadRequest("the servers of this cluster have their data in etcds of their own: leave out --etcd-servers")
	case !own && len(q.Etcd) == 0:
		return apierrors.NewBadRequest("the servers of this cluster have their data in an external etcd: give --etcd-servers " + strings.Join(d.cfg.EtcdServers, ",") +
			", and what they need to reach it")
	}
	return nil
}

// startOver has the same program take this one's place, once the answer to whoever asked for it is on its way.
func (d *Daemon) startOver() {
	d.again.Do(func() {
		time.AfterFunc(answerFirst, func() { close(d.restart) })
	})
}

// ServerProof returns the proof of a token for servers, with the keys in a data dir.
func ServerProof(dataDir, bearer string) (string, error) {
	proof, err := apiserver.ServerProof(filepath.Join(dataDir, "pki"), bearer)
	if errors.Is(err, os.ErrNotExist) {
		return "", fmt.Errorf("tokens for servers are made where a server is, with its --data-dir: %w", err)
	}
	return proof, err
}
