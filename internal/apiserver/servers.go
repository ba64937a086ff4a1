package apiserver

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"time"

	"wherry.dev/internal/apiserver/storage"
	"wherry.dev/internal/pki"
	"wherry.dev/internal/record"
)

// alone reports whether no other server can be using the same data.
func (c *Config) alone() bool { return len(c.EtcdServers) == 0 && !storage.HasMembers(c.etcdDir()) }

// Names in CertDir of what the etcds of several servers know each other by. The authority signs for nothing else: nodes,
// which have certificates of the cluster's, must not be taken for servers.
const (
	peerCAName = "etcd-ca"
	peerName   = "etcd-peer"
)

// sharedFiles are the files of CertDir that all servers of a cluster have in common.
var sharedFiles = []string{"ca.crt", "ca.key", "front-proxy-ca.crt", "front-proxy-ca.key", "sa.key", peerCAName + ".crt", peerCAName + ".key"}

// loadPeer makes what other servers' etcds know this one by, if there are others.
func (c *credentials) loadPeer(cfg *Config, now time.Time) error {
	if len(cfg.EtcdServers) > 0 {
		return nil
	}
	if !storage.HasMembers(cfg.etcdDir()) {
		if _, err := os.Stat(filepath.Join(cfg.CertDir, peerName+".crt")); err == nil && !storage.HasData(cfg.etcdDir()) {
			return fmt.Errorf("%w (%s)", storage.ErrLost, cfg.etcdDir())
		}
		return nil
	}
	if err := pki.RefuseLost(cfg.CertDir, peerCAName, peerCAName); err != nil {
		return err
	}
	ca, err := pki.LoadOrCreateCA(cfg.CertDir, peerCAName, peerCAName, now)
	if err != nil {
		return fmt.Errorf("certificate authority of etcd's members: %w", err)
	}
	host, _, err := net.SplitHostPort(cfg.PeerAddress)
	if err != nil || net.ParseIP(host) == nil {
		return fmt.Errorf("the address for other servers %q is not IP:PORT", cfg.PeerAddress)
	}
	leaf := pki.Leaf{CommonName: cfg.PeerName, IPs: []net.IP{net.ParseIP(host)}, Server: true, Client: true}
	c.peerCA = ca.CertFile
	c.authorities = append(c.authorities, ca)
	if c.peerCert, c.peerKey, err = ca.Issue(cfg.CertDir, peerName, leaf, now); err != nil {
		return fmt.Errorf("certificate for other servers: %w", err)
	}
	return nil
}

func (s *Server) peers() *storage.Peers {
	if s.creds.peerCert == "" {
		return nil
	}
	return &storage.Peers{
		Name: s.cfg.PeerName, Address: s.cfg.PeerAddress, CertFile: s.creds.peerCert, KeyFile: s.creds.peerKey, CAFile: s.creds.peerCA,
		Waiting: s.cfg.Waiting,
	}
}

// HasServers reports whether the embedded etcd below a data dir is, or will be, one of several servers.
func HasServers(dataDir string) bool {
	return storage.HasMembers(etcdIn(dataDir))
}

// HasData reports whether there is data of a cluster below a data dir.
func HasData(dataDir string) bool { return storage.HasData(etcdIn(dataDir)) }

// WillHaveServers makes the next start below a data dir ready for other servers.
func WillHaveServers(dataDir string) error {
	return storage.WillHaveMembers(etcdIn(dataDir))
}

// Welcome is what a server gets that joins others: the keys of the cluster, and where the members of its etcd are.
type Welcome struct {
	Files map[string][]byte `json:"files"` // of CertDir
	// Members is empty if the data are in an external etcd.
	Members string `json:"members,omitempty"`
	// EtcdServers are the URLs of the external etcd.
	EtcdServers []string `json:"etcdServers,omitempty"`
	// Encryption is a digest of the configuration by which the data are encrypted; empty if they are not.
	Encryption string `json:"encryption,omitempty"`
}

// Welcome lets another server join. The errors are storage.ErrLone, storage.ErrBusy, or say what is wrong with the name and
// the address.
func (s *Server) Welcome(ctx context.Context, name, address string) (w Welcome, err error) {
	if s.cfg.alone() {
		return w, storage.ErrLone
	}
	w.EtcdServers = s.cfg.EtcdServers
	if w.Encryption, err = encryptionDigest(s.cfg.EncryptionConfig); err != nil {
		return w, err
	}
	w.Files = map[string][]byte{}
	for _, name := range sharedFiles {
		data, err := os.ReadFile(filepath.Join(s.cfg.CertDir, name))
		if errors.Is(err, fs.ErrNotExist) {
			continue // another one was named by a flag, as it has to be everywhere
		}
		if err != nil {
			return w, err
		}
		w.Files[name] = data
	}
	if len(w.EtcdServers) == 0 {
		w.Members, err = s.backend.AddMember(ctx, name, address)
	}
	return w, err
}

// encryptionDigest tells whether two servers encrypt the data in the same way.
func encryptionDigest(file string) (string, error) {
	if file == "" {
		return "", nil
	}
	data, err := os.ReadFile(file)
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:]), nil
}

// Check returns an error if a data dir cannot be that of a server that has been welcomed: something of another cluster is there.
func (w Welcome) Check(dataDir, encryptionConfig string) error {
	digest, err := encryptionDigest(encryptionConfig)
	switch {
	case err != nil:
		return err
	case digest != w.Encryption && w.Encryption == "":
		return errors.New("the other servers do not encrypt the cluster's data: leave out --encryption-provider-config, or give it to them first")
	case digest != w.Encryption:
		return errors.New("the other servers encrypt the cluster's data: copy the file that --encryption-provider-config names there, and name it here")
	}
	for name, data := range w.Files {
		if !slices.Contains(sharedFiles, name) {
			return fmt.Errorf("the other server has sent a file %q, which servers do not share", name)
		}
		path := filepath.Join(dataDir, "pki", name)
		if have, err := os.ReadFile(path); err == nil && !bytes.Equal(have, data) {
			return fmt.Errorf("%s is of another cluster than that of the other servers: take down what was here before with `wherry down --purge`", path)
		}
	}
	return nil
}

// Accept makes the folders of a server that has been welcomed, which Check has found good, and returns the files that were not
// there before.
func (w Welcome) Accept(dataDir string) (made []string, err error) {
	dir := filepath.Join(dataDir, "pki")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	for name, data := range w.Files {
		path := filepath.Join(dir, name)
		if _, err := os.Stat(path); err == nil {
			continue // the same, says Check
		}
		made = append(made, path)
		if err := record.WriteFile(path, data, 0o600); err != nil {
			return made, err
		}
	}
	if w.Members == "" {
		return made, nil
	}
	etcd := etcdIn(dataDir)
	if !storage.HasMembers(etcd) {
		made = append(made, storage.MembersFile(etcd))
	}
	return made, storage.Join(etcd, w.Members)
}

// Members returns the etcds of the cluster's servers. One that is alone has a name of its own, and is shown by its server's.
func (s *Server) Members() ([]storage.Member, error) {
	all, err := s.backend.Members()
	if len(all) == 1 && s.cfg.PeerName != "" {
		all[0].Name = s.cfg.PeerName
	}
	return all, err
}

// RemoveMember takes the etcd of a server out of the cluster.
func (s *Server) RemoveMember(ctx context.Context, who string) (storage.Member, error) {
	return s.backend.RemoveMember(ctx, who)
}

// ServerProof returns what proves that the token with an ID and secret was made for servers, by somebody who has the
// cluster's keys: whoever may write secrets may make tokens for nodes, and must not get the keys with one.
func ServerProof(certDir, token string) (string, error) {
	key, err := os.ReadFile(filepath.Join(certDir, "ca.key"))
	if err != nil {
		return "", err
	}
	mac := hmac.New(sha256.New, key)
	mac.Write([]byte("wherry server token\n" + token))
	return hex.EncodeToString(mac.Sum(nil)), nil
}

// ProvesServer reports whether a proof is the one of a token.
func (s *Server) ProvesServer(token, proof string) (bool, error) {
	want, err := ServerProof(s.cfg.CertDir, token)
	return err == nil && hmac.Equal([]byte(want), []byte(proof)), err
}
