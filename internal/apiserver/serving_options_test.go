package apiserver

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
)

// given parses flags into a configuration, on top of what it holds.
func given(t *testing.T, c *Config, flags ...string) {
	t.Helper()
	fs := pflag.NewFlagSet("", pflag.ContinueOnError)
	c.AddFlags(fs)
	if err := fs.Parse(flags); err != nil {
		t.Fatal(err)
	}
}

func TestServingFlags(t *testing.T) {
	s := start(t, func(c *Config) {
		given(t, c, "--strict-transport-security-directives=max-age=100,preload", "--cors-allowed-origins=//good.example(:|$)",
			"--tls-min-version=VersionTLS13", "--external-hostname=api.example", "--service-node-port-range=40000-40009",
			"--default-not-ready-toleration-seconds=7", "--default-unreachable-toleration-seconds=8", "--goaway-chance=0.01")
	})
	boss := overTCP(s.ClientConfig("admin", "system:masters"))
	res, _ := ask(t, boss, "/version")
	if got := res.Header.Get("Strict-Transport-Security"); got != "max-age=100; preload" {
		t.Errorf("HSTS: %q", got)
	}
	for origin, want := range map[string]bool{"https://good.example": true, "https://bad.example": false} {
		from := rest.CopyConfig(boss)
		from.Wrap(func(next http.RoundTripper) http.RoundTripper { return originOf{origin, next} })
		res, _ := ask(t, from, "/version")
		if got := res.Header.Get("Access-Control-Allow-Origin") == origin; got != want {
			t.Errorf("%s may ask: %v", origin, got)
		}
	}
	if conn, err := tls.Dial("tcp", s.Addr().String(), &tls.Config{InsecureSkipVerify: true, MaxVersion: tls.VersionTLS12}); err == nil {
		t.Error("TLS 1.2 is accepted")
		if err := conn.Close(); err != nil {
			t.Error(err)
		}
	}
	if _, body := ask(t, boss, "/.well-known/openid-configuration"); !strings.Contains(body, `"jwks_uri":"https://api.example:`) {
		t.Errorf("issuer: %s", body)
	}
	pod, err := admin(t, s).CoreV1().Pods("default").Create(t.Context(), testPod("p"), metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	var stay []int64
	for _, tol := range pod.Spec.Tolerations {
		stay = append(stay, *tol.TolerationSeconds)
	}
	if !slices.Equal(stay, []int64{7, 8}) {
		t.Errorf("tolerations: %v", stay)
	}
	svc := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "s"}, Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeNodePort, Ports: []corev1.ServicePort{{Port: 1}}}}
	svc, err = admin(t, s).CoreV1().Services("default").Create(t.Context(), svc, metav1.CreateOptions{})
	if err != nil || svc.Spec.Ports[0].NodePort < 40000 || svc.Spec.Ports[0].NodePort > 40009 {
		t.Errorf("%v; node port %v", err, svc.Spec.Ports)
	}
	// Plain text for people who ask for it; between name and value stands something else each time.
	for path, want := range map[string]string{"/flagz": `goaway-chance\W+0\.01`, "/statusz": `Binary version`} {
		plain := rest.CopyConfig(boss)
		plain.Wrap(func(next http.RoundTripper) http.RoundTripper { return plainText{next} })
		if res, body := ask(t, plain, path); res.StatusCode != http.StatusOK || !regexp.MustCompile(want).MatchString(body) {
			t.Errorf("%s: %s, %s", path, res.Status, body)
		}
		if res, _ := ask(t, overTCP(s.ClientConfig("mallory")), path); res.StatusCode != http.StatusForbidden {
			t.Errorf("%s without rights: %s", path, res.Status)
		}
	}
}

// originOf sends requests as a web page of that origin does.
type originOf struct {
	origin string
	next   http.RoundTripper
}

func (o originOf) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("Origin", o.origin)
	return o.next.RoundTrip(r)
}

type plainText struct{ next http.RoundTripper }

func (p plainText) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("Accept", "text/plain")
	return p.next.RoundTrip(r)
}

// A server that was told to stop says at once that it is not ready, and serves until the delay is over.
func TestConnectionsAsFlagsSay(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "debug.sock")
	s := start(t, func(c *Config) {
		given(t, c, "--disable-http2-serving", "--permit-port-sharing", "--tls-curve-preferences=23", "--debug-socket-path="+socket)
	})
	conn, err := tls.Dial("tcp", s.Addr().String(), &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2", "http/1.1"}})
	if err != nil {
		t.Fatal(err)
	}
	if got := conn.ConnectionState(); got.NegotiatedProtocol != "http/1.1" || got.CurveID != tls.CurveP256 {
		t.Errorf("%s, key exchange %s", got.NegotiatedProtocol, got.CurveID)
	}
	if err := conn.Close(); err != nil {
		t.Error(err)
	}
	port := s.Addr().Port
	other := start(t, func(c *Config) { given(t, c, "--permit-port-sharing", "--secure-port="+strconv.Itoa(port)) })
	if got := other.Addr().Port; got != port {
		t.Errorf("ports %d and %d", port, got)
	}
	debug := http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", socket)
	}}}
	res, err := debug.Get("http://debug/debug/pprof/cmdline")
	if err != nil || res.StatusCode != http.StatusOK {
		t.Fatalf("profiles at the socket: %v %v", res, err)
	}
	if err := res.Body.Close(); err != nil {
		t.Error(err)
	}
	debug.CloseIdleConnections()
	if info, err := os.Stat(socket); err != nil || info.Mode().Perm()&0o022 != 0 {
		t.Errorf("others may open the socket: %v %v", info.Mode(), err)
	}
}

func TestShutdownDelay(t *testing.T) {
	s, stop := run(t, t.TempDir(), func(c *Config) { given(t, c, "--shutdown-delay-duration=5s", "--shutdown-send-retry-after") })
	boss := overTCP(s.ClientConfig("admin", "system:masters"))
	eventually(t, func() error {
		if res, body := ask(t, boss, "/readyz"); res.StatusCode != http.StatusOK {
			return errors.New("before: " + body)
		}
		return nil
	})
	stopped, began := make(chan struct{}), time.Now()
	go func() { defer close(stopped); stop() }()
	eventually(t, func() error {
		if res, body := ask(t, boss, "/readyz"); res.StatusCode == http.StatusOK || !strings.Contains(body, "shutdown") {
			return errors.New("the server is still ready: " + body)
		}
		return nil
	})
	<-stopped
	if took := time.Since(began); took < 4*time.Second {
		t.Errorf("stopped after %s", took)
	}
}

func TestFlagsThatCannotBeGrantedAreRefused(t *testing.T) {
	for flag, want := range map[string]string{
		"--egress-selector-config-file=/etc/egress.yaml":               "--egress-selector-config-file",
		"--etcd-prefix=/other":                                         "the prefix is always /registry",
		"--etcd-prefix=/registry":                                      "",
		"--storage-backend=etcd2":                                      "the backend is always etcd3",
		"--storage-backend=etcd3":                                      "",
		"--goaway-chance=0.5":                                          "--goaway-chance can not be less than 0 or greater than 0.02",
		"--cors-allowed-origins=example":                               "--cors-allowed-origins has an invalid regular expression",
		"--strict-transport-security-directives=forever":               "--strict-transport-security-directives invalid",
		"--tls-min-version=SSL3":                                       "--tls-min-version",
		"--tls-cipher-suites=ROT13":                                    "--tls-cipher-suites",
		"--tls-cipher-suites=TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256":    "",
		"--service-account-jwks-uri=http://keys.example":               "--service-account-jwks-uri",
		"--service-account-issuer=":                                    "--service-account-issuer must not be empty",
		"--service-account-issuer=a --service-account-issuer=a":        `--service-account-issuer "a" is given twice`,
		"--service-account-issuer=a --service-account-issuer=b":        "",
		"--service-account-issuer=http://[":                            `--service-account-issuer "http://[" has a colon, but is not a URL`,
		"--kubelet-preferred-address-types=InternalIP,Postal":          `--kubelet-preferred-address-types: "Postal" is not one of Hostname, `,
		"--kubelet-preferred-address-types=":                           "--kubelet-preferred-address-types must name at least one type",
		"--kubelet-preferred-address-types=ExternalIP,Hostname":        "",
		"--delete-collection-workers=0":                                "--delete-collection-workers",
		"--default-not-ready-toleration-seconds=-1":                    "--default-not-ready-toleration-seconds",
		"--max-requests-inflight=0 --max-mutating-requests-inflight=0": "must add up to something positive",
		"--min-request-timeout=-1":                                     "--min-request-timeout",
		"--tracing-config-file=/absent.yaml":                           "tracing-config-file",
		"--audit-log-path=- --audit-log-mode=loud":                     "invalid audit log mode loud",
		"--tls-curve-preferences=99":                                   "--tls-curve-preferences",
		"--http2-max-streams-per-connection=-1":                        "--http2-max-streams-per-connection -1",
		"--livez-grace-period=-1s":                                     "--livez-grace-period",
		"--storage-initialization-timeout=-1s":                         "--storage-initialization-timeout",
		"--enable-logs-handler":                                        "files of the machine are not served",
		"--authorization-policy-file=/etc/abac.json":                   "there is no mode ABAC",
		"--emulated-version=1.36":                                      "Kubernetes 1.37 is the only version",
		"--emulated-version=kube=1.37":                                 "",
		"--kubernetes-service-node-port=0":                             "",
	} {
		cfg := DefaultConfig()
		given(t, &cfg, strings.Split(flag, " ")...)
		err := errors.Join(cfg.Validate()...)
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", flag, err, want)
		}
	}
}

// Only suites with forward secrecy and authenticated encryption are spoken, unless flags say otherwise.
func TestOldCiphersAreRefused(t *testing.T) {
	const modern, cbc = tls.TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256, tls.TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA
	speaks := func(s *Server, suite uint16) bool {
		conn, err := tls.Dial("tcp", s.Addr().String(), &tls.Config{
			InsecureSkipVerify: true, MaxVersion: tls.VersionTLS12, CipherSuites: []uint16{suite},
		})
		if err == nil {
			err = conn.Close()
		}
		return err == nil
	}
	if s := start(t); !speaks(s, modern) || speaks(s, cbc) {
		t.Errorf("by default: GCM %v, CBC %v", speaks(s, modern), speaks(s, cbc))
	}
	if s := start(t, func(c *Config) {
		given(t, c, "--tls-cipher-suites=TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256,TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA")
	}); !speaks(s, modern) || !speaks(s, cbc) {
		t.Errorf("if asked for: GCM %v, CBC %v", speaks(s, modern), speaks(s, cbc))
	}
}
