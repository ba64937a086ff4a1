package cluster

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"regexp"
	"slices"

	"k8s.io/client-go/util/cert"
	bootstrap "k8s.io/cluster-bootstrap/token/api"
)

// Token is what somebody needs to let a node join: a bootstrap token as kubeadm's clusters have them, and by which
// certificate authority the cluster is known.
type Token struct {
	ID, Secret string
	// CAHash is the SHA-256 of the public key (SubjectPublicKeyInfo) of the cluster's certificate authority, in hex: what
	// kubeadm prints after "sha256:".
	CAHash string
	// Proof is in tokens for servers: that somebody with the cluster's keys made it.
	Proof string
}

// ServersGroup is the group of those who come with a token for servers.
const ServersGroup = "system:bootstrappers:wherry:servers"

// ServersPath is where servers ask to join.
const ServersPath = "/wherry/servers/"

// groups are the token's ID, its secret, the authority's hash, and the proof.
var tokenPattern = regexp.MustCompile(`^([a-z0-9]{6})\.([a-z0-9]{16})\.(?:sha256:)?([0-9a-f]{64})(?:\.([0-9a-f]{64}))?$`)

// ParseToken reads what String returned.
func ParseToken(s string) (Token, error) {
	groups := tokenPattern.FindStringSubmatch(s)
	switch {
	case groups != nil:
		return Token{groups[1], groups[2], groups[3], groups[4]}, nil
	case regexp.MustCompile(bootstrap.BootstrapTokenPattern).MatchString(s):
		return Token{}, errors.New("the token lacks the hash of the cluster's certificate authority, without which somebody in between could be the server; " +
			"use the one that `wherry token create` prints, or append a dot and kubeadm's --discovery-token-ca-cert-hash")
	}
	return Token{}, errors.New("it is not a token: want ID.SECRET.HASH, as `wherry token create` prints it")
}

// String returns the whole token.
func (t Token) String() string {
	if t.Proof == "" {
		return t.Bearer() + "." + t.CAHash
	}
	return t.Bearer() + "." + t.CAHash + "." + t.Proof
}

// Bearer returns the part that an API server knows.
func (t Token) Bearer() string { return t.ID + "." + t.Secret }

// CheckCA returns nil if one of the certificates, in PEM, is of the authority that the token names.
func (t Token) CheckCA(pem []byte) error {
	hashes, err := CAHashes(pem)
	if err != nil {
		return err
	}
	if slices.Contains(hashes, t.CAHash) {
		return nil
	}
	return fmt.Errorf("its certificate authority has the hash %s, and the token names %s: the token is of another cluster, or somebody is in between", hashes[0], t.CAHash)
}

// CAHashes returns the hashes of certificates in PEM, as tokens have them.
func CAHashes(pem []byte) (out []string, err error) {
	certs, err := cert.ParseCertsPEM(pem)
	if err != nil {
		return nil, fmt.Errorf("certificate authority: %w", err)
	}
	for _, c := range certs {
		sum := sha256.Sum256(c.RawSubjectPublicKeyInfo)
		out = append(out, hex.EncodeToString(sum[:]))
	}
	return out, nil
}
