package token

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rsa"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"math/big"
	"net/http"
	"strings"
)

// Paths of OpenID discovery, with which others verify our tokens.
const (
	ConfigurationPath = "/.well-known/openid-configuration"
	KeysPath          = "/openid/v1/jwks"
)

// jwk is a public key as JSON (RFC 7517).
type jwk struct {
	Use       string `json:"use"`
	KeyType   string `json:"kty"`
	KeyID     string `json:"kid"`
	Curve     string `json:"crv,omitempty"`
	Algorithm string `json:"alg"`
	X         string `json:"x,omitempty"`
	Y         string `json:"y,omitempty"`
	N         string `json:"n,omitempty"`
	E         string `json:"e,omitempty"`
}

type configuration struct {
	Issuer        string   `json:"issuer"`
	KeysURI       string   `json:"jwks_uri"`
	ResponseTypes []string `json:"response_types_supported"`
	SubjectTypes  []string `json:"subject_types_supported"`
	Algorithms    []string `json:"id_token_signing_alg_values_supported"`
}

// Discovery returns the handlers of the two documents, by path. keysURI is where the
// second one is reached from outside.
func Discovery(issuer, keysURI string, keys []crypto.PublicKey) (map[string]http.Handler, error) {
	set := struct {
		Keys []jwk `json:"keys"`
	}{}
	doc := configuration{
		Issuer:        issuer,
		KeysURI:       keysURI,
		ResponseTypes: []string{"id_token"},
		SubjectTypes:  []string{"public"},
	}
	for _, key := range keys {
		k, err := jwkOf(key)
		if err != nil {
			return nil, err
		}
		set.Keys = append(set.Keys, k)
		if !strings.Contains(strings.Join(doc.Algorithms, " "), k.Algorithm) {
			doc.Algorithms = append(doc.Algorithms, k.Algorithm)
		}
	}
	configHandler, err := static("application/json", doc)
	if err != nil {
		return nil, err
	}
	keysHandler, err := static("application/jwk-set+json", set)
	if err != nil {
		return nil, err
	}
	return map[string]http.Handler{ConfigurationPath: configHandler, KeysPath: keysHandler}, nil
}

func static(contentType string, v any) (http.Handler, error) {
	body, err := json.Marshal(v)
	if err != nil {
		return nil, err
	}
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", contentType)
		w.Header().Set("Cache-Control", "public, max-age=3600")
		_, _ = w.Write(body) // fails only if the client has left
	}), nil
}

func jwkOf(key crypto.PublicKey) (jwk, error) {
	id, err := keyID(key)
	if err != nil {
		return jwk{}, err
	}
	b64 := base64.RawURLEncoding.EncodeToString
	switch k := key.(type) {
	case *ecdsa.PublicKey:
		point, err := k.Bytes() // 4, then X and Y in full length
		if err != nil {
			return jwk{}, fmt.Errorf("service account key: %w", err)
		}
		half := (len(point) - 1) / 2
		algorithms := map[elliptic.Curve]string{elliptic.P256(): "ES256", elliptic.P384(): "ES384", elliptic.P521(): "ES512"}
		return jwk{
			Use: "sig", KeyType: "EC", KeyID: id, Curve: k.Curve.Params().Name, Algorithm: algorithms[k.Curve],
			X: b64(point[1 : 1+half]), Y: b64(point[1+half:]),
		}, nil
	case *rsa.PublicKey:
		return jwk{
			Use: "sig", KeyType: "RSA", KeyID: id, Algorithm: "RS256",
			N: b64(k.N.Bytes()), E: b64(big.NewInt(int64(k.E)).Bytes()),
		}, nil
	default:
		return jwk{}, fmt.Errorf("service account key is %T, which is not supported", key)
	}
}
