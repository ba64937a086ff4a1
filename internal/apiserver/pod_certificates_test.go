package apiserver

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"math/big"
	"slices"
	"strings"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
)

// authority is a certificate and its key.
type authority struct {
	cert *x509.Certificate
	key  crypto.Signer
}

func newAuthority(t *testing.T, name string) authority {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	a := authority{key: key}
	a.cert = a.issue(t, key.Public(), x509.Certificate{Subject: pkix.Name{CommonName: name}, IsCA: true, BasicConstraintsValid: true}, time.Now(), time.Hour)
	return a
}

func (a authority) issue(t *testing.T, key crypto.PublicKey, tmpl x509.Certificate, from time.Time, life time.Duration) *x509.Certificate {
	t.Helper()
	tmpl.SerialNumber, tmpl.NotBefore, tmpl.NotAfter = big.NewInt(1), from, from.Add(life)
	parent := a.cert
	if parent == nil {
		parent = &tmpl
	}
	der, err := x509.CreateCertificate(rand.Reader, &tmpl, parent, key, a.key)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return cert
}

func inPEM(certs ...*x509.Certificate) string {
	var out strings.Builder
	for _, c := range certs {
		out.Write(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.Raw}))
	}
	return out.String()
}

func trustBundle(name, signer, anchors string) *certificatesv1.ClusterTrustBundle {
	return &certificatesv1.ClusterTrustBundle{
		ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: certificatesv1.ClusterTrustBundleSpec{SignerName: signer, TrustBundle: anchors},
	}
}

// allowInCluster gives a user rights through a cluster role.
func allowInCluster(t *testing.T, s *Server, who string, rules ...rbacv1.PolicyRule) {
	t.Helper()
	api := admin(t, s).RbacV1()
	role := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{GenerateName: "test-"}, Rules: rules}
	role, err := api.ClusterRoles().Create(t.Context(), role, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	binding := &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: role.Name}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role.Name},
		Subjects: []rbacv1.Subject{{Kind: rbacv1.UserKind, APIGroup: rbacv1.GroupName, Name: who}},
	}
	if _, err := api.ClusterRoleBindings().Create(t.Context(), binding, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

func signersRule(verb, name string) rbacv1.PolicyRule {
	return rbacv1.PolicyRule{Verbs: []string{verb}, APIGroups: []string{"certificates.k8s.io"}, Resources: []string{"signers"}, ResourceNames: []string{name}}
}

// cellsOf returns the rows that `kubectl get` shows.
func cellsOf(t *testing.T, c kubernetes.Interface, resource string) (columns []string, rows [][]any) {
	t.Helper()
	data, err := c.CertificatesV1().RESTClient().Get().Resource(resource).
		SetHeader("Accept", "application/json;as=Table;v=v1;g=meta.k8s.io").DoRaw(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var table metav1.Table
	if err := json.Unmarshal(data, &table); err != nil {
		t.Fatal(err)
	}
	for _, c := range table.ColumnDefinitions {
		columns = append(columns, c.Name)
	}
	for _, r := range table.Rows {
		rows = append(rows, r.Cells)
	}
	return columns, rows
}

func TestClusterTrustBundles(t *testing.T) {
	s := start(t)
	ctx, api := t.Context(), admin(t, s).CertificatesV1().ClusterTrustBundles()
	a, b := newAuthority(t, "a"), newAuthority(t, "b")
	signed, err := api.Create(ctx, trustBundle("example.com:s:v1", "example.com/s", inPEM(a.cert)), metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := api.Create(ctx, trustBundle("plain", "", "words between\n"+inPEM(a.cert, b.cert)), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	for selector, want := range map[string]int{"spec.signerName=example.com/s": 1, "spec.signerName=": 1, "metadata.name=plain": 1} {
		if l, err := api.List(ctx, metav1.ListOptions{FieldSelector: selector}); err != nil || len(l.Items) != want {
			t.Errorf("%s: %d bundles, %v; want %d", selector, len(l.Items), err, want)
		}
	}
	columns, rows := cellsOf(t, admin(t, s), "clustertrustbundles")
	if want := "[Name SignerName] [[example.com:s:v1 example.com/s] [plain <none>]]"; fmt.Sprint(columns, rows) != want {
		t.Errorf("table %v %v, want %s", columns, rows, want)
	}
	leaf := a.issue(t, b.key.Public(), x509.Certificate{Subject: pkix.Name{CommonName: "leaf"}}, time.Now(), time.Hour)
	headers := string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Headers: map[string]string{"K": "v"}, Bytes: a.cert.Raw}))
	for want, bad := range map[string]*certificatesv1.ClusterTrustBundle{
		"must be named with prefix example.com:s:":          trustBundle("x", "example.com/s", inPEM(a.cert)),
		`without signer name must not have ":" in its name`: trustBundle("example.com:s:v2", "", inPEM(a.cert)),
		"metadata.name: Invalid value: \"example.com:s:A\"": trustBundle("example.com:s:A", "example.com/s", inPEM(a.cert)),
		"spec.signerName: Invalid value":                    trustBundle("s:v1", "s", inPEM(a.cert)),
		"at least one trust anchor must be provided":        trustBundle("x", "", "nothing"),
		"entry 1 does not have the CA bit set":              trustBundle("x", "", inPEM(a.cert, leaf)),
		"duplicate trust anchor (indices [0 2])":            trustBundle("x", "", inPEM(a.cert, b.cert, a.cert)),
		"entry 0 has PEM block headers":                     trustBundle("x", "", headers),
		"entry 0 has bad block type: KEY":                   trustBundle("x", "", string(pem.EncodeToMemory(&pem.Block{Type: "KEY"}))),
		"entry 0 does not parse as X.509":                   trustBundle("x", "", string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE"}))),
		"may not be more than 1048576 bytes":                trustBundle("x", "", strings.Repeat("x", 1<<20+1)),
	} {
		if _, err := api.Create(ctx, bad, metav1.CreateOptions{}); !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", want, err)
		}
	}
	changed := signed.DeepCopy()
	changed.Spec.TrustBundle = inPEM(b.cert)
	if signed, err = api.Update(ctx, changed, metav1.UpdateOptions{}); err != nil || signed.Spec.TrustBundle != inPEM(b.cert) {
		t.Fatalf("new anchors: %v", err)
	}
	changed = signed.DeepCopy()
	changed.Spec.SignerName = "example.com/other"
	if _, err := api.Update(ctx, changed, metav1.UpdateOptions{}); !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), "field is immutable") {
		t.Errorf("another signer: %v", err)
	}
	changed = signed.DeepCopy()
	changed.ResourceVersion = ""
	if _, err := api.Update(ctx, changed, metav1.UpdateOptions{}); !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), "metadata.resourceVersion") {
		t.Errorf("an update of whatever version: %v", err)
	}
}

func TestWhoMayAttestAndReadTrustBundles(t *testing.T) {
	s := start(t)
	ctx := t.Context()
	of := func(name string, groups ...string) kubernetes.Interface {
		return clientFor(t, s.ClientConfig(name, groups...))
	}
	jane := of("jane").CertificatesV1().ClusterTrustBundles()
	a := newAuthority(t, "a")
	allowInCluster(t, s, "jane", rbacv1.PolicyRule{Verbs: []string{"*"}, APIGroups: []string{"certificates.k8s.io"}, Resources: []string{"clustertrustbundles"}})
	eventually(t, func() error {
		_, err := jane.Create(ctx, trustBundle("plain", "", inPEM(a.cert)), metav1.CreateOptions{})
		return err
	})
	signed := trustBundle("example.com:s:v1", "example.com/s", inPEM(a.cert))
	_, err := jane.Create(ctx, signed, metav1.CreateOptions{})
	if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), `user not permitted to attest for signerName "example.com/s"`) {
		t.Errorf("attested by somebody: %v", err)
	}
	if signed, err = admin(t, s).CertificatesV1().ClusterTrustBundles().Create(ctx, signed, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	signed.Finalizers = []string{"example.com/hold"}
	if signed, err = jane.Update(ctx, signed, metav1.UpdateOptions{}); err != nil {
		t.Errorf("a finalizer needs no right to attest: %v", err)
	}
	signed.Labels = map[string]string{"a": "b"}
	if _, err := jane.Update(ctx, signed, metav1.UpdateOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("labels, by which pods choose, without the right to attest: %v", err)
	}
	allowInCluster(t, s, "jane", signersRule("attest", "example.com/*"))
	eventually(t, func() error {
		_, err := jane.Update(ctx, signed, metav1.UpdateOptions{})
		return err
	})
	for who, c := range map[string]kubernetes.Interface{
		"a node":            of("system:node:n1", "system:nodes", "system:authenticated"),
		"a service account": of("system:serviceaccount:default:default", "system:serviceaccounts", "system:serviceaccounts:default", "system:authenticated"),
	} {
		api := c.CertificatesV1().ClusterTrustBundles()
		if l, err := api.List(ctx, metav1.ListOptions{}); err != nil || len(l.Items) != 2 {
			t.Errorf("%s lists: %v", who, err)
		}
		if w, err := api.Watch(ctx, metav1.ListOptions{}); err != nil {
			t.Errorf("%s watches: %v", who, err)
		} else {
			w.Stop()
		}
		if _, err := api.Create(ctx, trustBundle("own", "", inPEM(a.cert)), metav1.CreateOptions{}); !apierrors.IsForbidden(err) {
			t.Errorf("%s creates: %v", who, err)
		}
	}
	if _, err := of("john").CertificatesV1().ClusterTrustBundles().Get(ctx, "plain", metav1.GetOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("anybody reads: %v", err)
	}
}

// podOnNode is a pod that runs on a node, and a request for it.
type podOnNode struct {
	key  crypto.Signer
	spec certificatesv1.PodCertificateRequestSpec
}

func newPodOnNode(t *testing.T, s *Server, name, node string) podOnNode {
	t.Helper()
	ctx, c := t.Context(), admin(t, s).CoreV1()
	n, err := c.Nodes().Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	pod := testPod(name)
	pod.Spec.NodeName = node
	if pod, err = c.Pods("default").Create(ctx, pod, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	account, err := c.ServiceAccounts("default").Get(ctx, "default", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return podOnNode{key, certificatesv1.PodCertificateRequestSpec{
		SignerName: "example.com/s", PodName: name, PodUID: pod.UID, ServiceAccountName: "default", ServiceAccountUID: account.UID,
		NodeName: types.NodeName(node), NodeUID: n.UID, StubPKCS10Request: stub(t, key),
	}}
}

func (p podOnNode) request(change ...func(*certificatesv1.PodCertificateRequestSpec)) *certificatesv1.PodCertificateRequest {
	r := &certificatesv1.PodCertificateRequest{ObjectMeta: metav1.ObjectMeta{GenerateName: "req-"}, Spec: *p.spec.DeepCopy()}
	for _, c := range change {
		c(&r.Spec)
	}
	return r
}

func stub(t *testing.T, key crypto.Signer) []byte {
	t.Helper()
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, key)
	if err != nil {
		t.Fatal(err)
	}
	return der
}

func TestPodCertificateRequestsAreOfANodesOwnPods(t *testing.T) {
	s := start(t)
	ctx := t.Context()
	own, other := newPodOnNode(t, s, "p", "n1"), newPodOnNode(t, s, "q", "n2")
	api := clientFor(t, s.ClientConfig("system:node:n1", "system:nodes", "system:authenticated")).CertificatesV1().PodCertificateRequests("default")
	mirror := testPod("mirror")
	mirror.Spec.NodeName, mirror.Annotations = "n1", map[string]string{corev1.MirrorPodAnnotationKey: "x"}
	mirror, err := admin(t, s).CoreV1().Pods("default").Create(ctx, mirror, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	forged := own.request()
	forged.Status.CertificateChain = "forged"
	r, err := api.Create(ctx, forged, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if r.Status.CertificateChain != "" || r.Spec.MaxExpirationSeconds == nil || *r.Spec.MaxExpirationSeconds != 86400 {
		t.Errorf("made: %+v", r)
	}
	type spec = *certificatesv1.PodCertificateRequestSpec
	for want, bad := range map[string]*certificatesv1.PodCertificateRequest{
		`"n2", which is not the requesting node "n1"`: other.request(),
		"not running on node":                         other.request(func(s spec) { s.NodeName, s.NodeUID = own.spec.NodeName, own.spec.NodeUID }),
		"names node UID":                              own.request(func(s spec) { s.NodeUID = "x" }),
		`pod "default/mirror" is a mirror pod`:        own.request(func(s spec) { s.PodName, s.PodUID = mirror.Name, mirror.UID }),
		"contains pod UID":                            own.request(func(s spec) { s.PodUID = "x" }),
		`pods "absent" not found`:                     own.request(func(s spec) { s.PodName = "absent" }),
		`contains serviceAccountName ("root")`:        own.request(func(s spec) { s.ServiceAccountName = "root" }),
		"names service account UID":                   own.request(func(s spec) { s.ServiceAccountUID = "x" }),
	} {
		if _, err := api.Create(ctx, bad, metav1.CreateOptions{}); !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", want, err)
		}
	}
	foreign, err := admin(t, s).CertificatesV1().PodCertificateRequests("default").Create(ctx, other.request(), metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := api.Get(ctx, r.Name, metav1.GetOptions{}); err != nil {
		t.Errorf("its own: %v", err)
	}
	if _, err := api.Get(ctx, foreign.Name, metav1.GetOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("another node's: %v", err)
	}
	for selector, allowed := range map[string]bool{
		"": false, "metadata.name=" + r.Name: false, "spec.nodeName=n2": false,
		"spec.nodeName=n1": true, "metadata.name=" + r.Name + ",spec.nodeName=n1": true,
	} {
		l, err := api.List(ctx, metav1.ListOptions{FieldSelector: selector})
		if allowed && (err != nil || len(l.Items) != 1) || !allowed && !apierrors.IsForbidden(err) {
			t.Errorf("list %q: %v", selector, err)
		}
	}
	r.Status.Conditions = condition(certificatesv1.PodCertificateRequestConditionTypeDenied)
	if _, err := api.UpdateStatus(ctx, r, metav1.UpdateOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("a node answers itself: %v", err)
	}
	if err := api.Delete(ctx, r.Name, metav1.DeleteOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("a node deletes: %v", err)
	}
}

func TestPodCertificateRequestIsChecked(t *testing.T) {
	s := start(t)
	ctx := t.Context()
	p := newPodOnNode(t, s, "p", "n1")
	api := admin(t, s).CertificatesV1().PodCertificateRequests("default")
	small, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	curve, err := ecdsa.GenerateKey(elliptic.P224(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	type spec = *certificatesv1.PodCertificateRequestSpec
	for want, change := range map[string]func(spec){
		"spec.signerName: Required":            func(s spec) { s.SignerName = "" },
		"spec.podName":                         func(s spec) { s.PodName = "A" },
		"spec.podUID":                          func(s spec) { s.PodUID = "" },
		"spec.serviceAccountUID: Too long":     func(s spec) { s.ServiceAccountUID = types.UID(strings.Repeat("x", 129)) },
		"spec.nodeName":                        func(s spec) { s.NodeName = "" },
		"must be in the range [3600, 7862400]": func(s spec) { s.MaxExpirationSeconds = new(int32(3599)) },
		"must be in the range [3600, 86400]": func(s spec) {
			s.SignerName, s.MaxExpirationSeconds = "kubernetes.io/kube-apiserver-client-pod", new(int32(86401))
		},
		"spec.unverifiedUserAnnotations":   func(s spec) { s.UnverifiedUserAnnotations = map[string]string{"nodomain": "x"} },
		"spec.stubPKCS10Request: Required": func(s spec) { s.StubPKCS10Request = nil },
		"must be a valid PKCS#10 CSR":      func(s spec) { s.StubPKCS10Request = []byte("x") },
		"2048-bit modulus":                 func(s spec) { s.StubPKCS10Request = stub(t, small) },
		"curve P-224":                      func(s spec) { s.StubPKCS10Request = stub(t, curve) },
		"spec.stubPKCS10Request: Invalid value: invalid signature": func(s spec) {
			s.StubPKCS10Request = slices.Clone(s.StubPKCS10Request)
			s.StubPKCS10Request[len(s.StubPKCS10Request)-1] ^= 1
		},
	} {
		if _, err := api.Create(ctx, p.request(change), metav1.CreateOptions{}); !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", want, err)
		}
	}
	r, err := api.Create(ctx, p.request(), metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	changed := r.DeepCopy()
	changed.Labels = map[string]string{"a": "b"}
	changed.Status.CertificateChain = "forged"
	if r, err = api.Update(ctx, changed, metav1.UpdateOptions{}); err != nil || r.Status.CertificateChain != "" || r.Labels["a"] != "b" {
		t.Errorf("a label: %v, %+v", err, r)
	}
	changed = r.DeepCopy()
	changed.Spec.SignerName = "example.com/other"
	if _, err := api.Update(ctx, changed, metav1.UpdateOptions{}); !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), "spec: Invalid value") {
		t.Errorf("another signer: %v", err)
	}
}

func condition(kind string) []metav1.Condition {
	return []metav1.Condition{{Type: kind, Status: metav1.ConditionTrue, Reason: "Test", Message: "m", LastTransitionTime: metav1.Now()}}
}

func TestPodCertificateIsIssuedOnceByItsSigner(t *testing.T) {
	s := start(t)
	ctx := t.Context()
	p := newPodOnNode(t, s, "p", "n1")
	root := admin(t, s).CertificatesV1().PodCertificateRequests("default")
	r, err := root.Create(ctx, p.request(), metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	ca, begin := newAuthority(t, "ca"), time.Now().Truncate(time.Second)
	issue := func(key crypto.PublicKey, begin time.Time, life time.Duration) *certificatesv1.PodCertificateRequest {
		leaf := ca.issue(t, key, x509.Certificate{Subject: pkix.Name{CommonName: "p"}}, begin, life)
		out := r.DeepCopy()
		out.Status = certificatesv1.PodCertificateRequestStatus{
			Conditions: condition(certificatesv1.PodCertificateRequestConditionTypeIssued), CertificateChain: inPEM(leaf, ca.cert),
			NotBefore: &metav1.Time{Time: leaf.NotBefore}, NotAfter: &metav1.Time{Time: leaf.NotAfter},
			BeginRefreshAt: &metav1.Time{Time: leaf.NotBefore.Add(life / 2)},
		}
		return out
	}
	good := issue(p.key.Public(), begin, 2*time.Hour)
	with := func(change func(*certificatesv1.PodCertificateRequestStatus)) *certificatesv1.PodCertificateRequest {
		out := good.DeepCopy()
		change(&out.Status)
		return out
	}
	type status = *certificatesv1.PodCertificateRequestStatus
	for want, bad := range map[string]*certificatesv1.PodCertificateRequest{
		"was not issued to the requested public key":        issue(ca.key.Public(), begin, 2*time.Hour),
		"within 5 minutes of kube-apiserver's current time": issue(p.key.Public(), begin.Add(-time.Hour), 2*time.Hour),
		"lifetime must be >= 1 hour":                        issue(p.key.Public(), begin, 59*time.Minute),
		"must be <= spec.maxExpirationSeconds (86400)":      issue(p.key.Public(), begin, 25*time.Hour),
		"must contain at least one certificate":             with(func(s status) { s.CertificateChain = "nonsense" }),
		"status.notAfter: Required":                         with(func(s status) { s.NotAfter = nil }),
		"NotBefore time encoded in the leaf":                with(func(s status) { s.NotBefore = &metav1.Time{Time: begin.Add(time.Second)} }),
		"at least 10 minutes after status.notBefore":        with(func(s status) { s.BeginRefreshAt = s.NotBefore }),
		"at least 10 minutes before status.notAfter":        with(func(s status) { s.BeginRefreshAt = s.NotAfter }),
		"status is immutable unless transitioning":          with(func(s status) { s.Conditions = nil }),
		"non-condition status fields must be empty": with(func(s status) {
			s.Conditions = condition(certificatesv1.PodCertificateRequestConditionTypeFailed)
		}),
		"status.conditions[0].type: Unsupported value":   with(func(s status) { s.Conditions[0].Type = "Approved" }),
		"status.conditions[0].status: Unsupported value": with(func(s status) { s.Conditions[0].Status = metav1.ConditionFalse }),
		"There may be at most one condition": with(func(s status) {
			s.Conditions = append(s.Conditions, condition(certificatesv1.PodCertificateRequestConditionTypeDenied)...)
		}),
	} {
		if _, err := root.UpdateStatus(ctx, bad, metav1.UpdateOptions{}); !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", want, err)
		}
	}
	signer := clientFor(t, s.ClientConfig("signer")).CertificatesV1().PodCertificateRequests("default")
	allowInCluster(t, s, "signer", rbacv1.PolicyRule{
		Verbs: []string{"get", "update"}, APIGroups: []string{"certificates.k8s.io"}, Resources: []string{"podcertificaterequests", "podcertificaterequests/status"},
	})
	eventually(t, func() error {
		_, err := signer.Get(ctx, r.Name, metav1.GetOptions{})
		return err
	})
	if _, err := signer.UpdateStatus(ctx, good, metav1.UpdateOptions{}); !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), `User "signer" is not permitted to "sign" for signer "example.com/s"`) {
		t.Errorf("signed by somebody: %v", err)
	}
	allowInCluster(t, s, "signer", signersRule("sign", "example.com/s"))
	eventually(t, func() error {
		_, err := signer.UpdateStatus(ctx, good, metav1.UpdateOptions{})
		return err
	})
	issued, err := root.Get(ctx, r.Name, metav1.GetOptions{})
	if err != nil || issued.Status.CertificateChain != good.Status.CertificateChain {
		t.Fatalf("issued: %v, %+v", err, issued)
	}
	issued.Status.CertificateChain = inPEM(ca.cert)
	if _, err := root.UpdateStatus(ctx, issued, metav1.UpdateOptions{}); !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), "immutable after PodCertificateRequest is issued") {
		t.Errorf("issued again: %v", err)
	}
	_, rows := cellsOf(t, admin(t, s), "podcertificaterequests")
	if want := fmt.Sprintf("[[%s p default n1 example.com/s Issued <none>]]", r.Name); fmt.Sprint(rows) != want {
		t.Errorf("table %v, want %s", rows, want)
	}
}
