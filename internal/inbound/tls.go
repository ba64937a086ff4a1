package inbound

import (
	"crypto/tls"
	"slices"
	"strings"
)

// CipherSuites returns the suites of TLS 1.2 that a server here offers if its user names none: those with
// forward secrecy and authenticated encryption. Go's own list also has some in CBC mode, which only
// clients from before 2014 need. TLS 1.3 has no others.
func CipherSuites() []uint16 {
	var out []uint16
	for _, s := range tls.CipherSuites() {
		aead := strings.Contains(s.Name, "_GCM_") || strings.Contains(s.Name, "_POLY1305_")
		if slices.Contains(s.SupportedVersions, tls.VersionTLS12) && strings.HasPrefix(s.Name, "TLS_ECDHE_") && aead {
			out = append(out, s.ID)
		}
	}
	return out
}
