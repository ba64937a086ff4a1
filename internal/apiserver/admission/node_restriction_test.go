package admission

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"testing"

	certificatesv1 "k8s.io/api/certificates/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authentication/user"
)

var nodeN1 = &user.DefaultInfo{Name: "system:node:n1", Groups: []string{user.NodesGroup, user.AllAuthenticated}}

// attributes returns those of a request about obj, which was old before.
func attributes(who user.Info, op admission.Operation, resource groupResource, subresource string, obj, old runtime.Object) admission.Attributes {
	named := obj
	if named == nil {
		named = old
	}
	m, err := meta.Accessor(named)
	if err != nil {
		panic(err)
	}
	return admission.NewAttributesRecord(obj, old, named.GetObjectKind().GroupVersionKind(), m.GetNamespace(), m.GetName(),
		resource.WithVersion("v1"), subresource, op, nil, false, who)
}

// wantRefusal compares the reason of a refusal; "" means no refusal.
func wantRefusal(t *testing.T, a admission.Attributes, err error, want string) {
	t.Helper()
	got := ""
	if err != nil {
		got = err.Error()
	}
	if want != "" {
		want = forbid(a, "%s", want).Error()
	}
	if got != want {
		t.Errorf("error %q, want %q", got, want)
	}
}

func node(name string, change ...func(*corev1.Node)) *corev1.Node {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
	for _, f := range change {
		f(n)
	}
	return n
}

func nodeLabels(pairs ...string) func(*corev1.Node) {
	return func(n *corev1.Node) {
		n.Labels = map[string]string{}
		for i := 0; i < len(pairs); i += 2 {
			n.Labels[pairs[i]] = pairs[i+1]
		}
	}
}

func tainted(n *corev1.Node) {
	n.Spec.Taints = []corev1.Taint{{Key: "k", Effect: corev1.TaintEffectNoSchedule}}
}

func podOn(nodeName string, change ...func(*corev1.Pod)) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "ns"}, Spec: corev1.PodSpec{NodeName: nodeName}}
	for _, f := range change {
		f(p)
	}
	return p
}

func mirror(p *corev1.Pod) {
	p.Annotations = map[string]string{corev1.MirrorPodAnnotationKey: "x"}
}

func ownedBy(refs ...metav1.OwnerReference) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.OwnerReferences = refs }
}

func lease(namespace, name string) *coordinationv1.Lease {
	return &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
}

func csiNode(name string) *storagev1.CSINode {
	return &storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{Name: name}}
}

func claimWith(change func(*corev1.PersistentVolumeClaim)) *corev1.PersistentVolumeClaim {
	c := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: "c", Namespace: "ns"}}
	change(c)
	return c
}

func signingRequest(t *testing.T, signer, commonName string) *certificatesv1.CertificateSigningRequest {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.CertificateRequest{Subject: pkix.Name{CommonName: commonName, Organization: []string{"system:nodes"}}}
	der, err := x509.CreateCertificateRequest(rand.Reader, template, key)
	if err != nil {
		t.Fatal(err)
	}
	return &certificatesv1.CertificateSigningRequest{ObjectMeta: metav1.ObjectMeta{Name: "r"}, Spec: certificatesv1.CertificateSigningRequestSpec{
		SignerName: signer, Request: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}),
	}}
}

func TestANodeKeepsToItsOwnObjects(t *testing.T) {
	const create, update, remove = admission.Create, admission.Update, admission.Delete
	const (
		label  = `node "n1" is not allowed to set the following labels: `
		labels = "is not allowed to modify labels: "
		other  = `node "n1" is not allowed to modify node "n2"`
		leases = `can only access leases in the "kube-node-lease" system namespace`
		lease1 = "can only access node lease with the same name as the requesting node"
		csi    = "can only access CSINode with the same name as the requesting node"
		owner  = `node "n1" can only create pods with an owner reference set to itself`
		claims = `node "n1" is not allowed to update fields other than status.quantity and status.conditions`
		csr    = "can only create a node CSR with CN=system:node:n1"
	)
	self := metav1.OwnerReference{APIVersion: "v1", Kind: "Node", Name: "n1", UID: "u", Controller: new(true)}
	selfAnd := func(change func(*metav1.OwnerReference)) metav1.OwnerReference {
		r := self
		change(&r)
		return r
	}
	claim := claimWith(func(*corev1.PersistentVolumeClaim) {})
	for name, tc := range map[string]struct {
		op          admission.Operation
		resource    groupResource
		subresource string
		obj, old    runtime.Object
		want        string
	}{
		"node":                   {create, nodesResource, "", node("n1", tainted), nil, ""},
		"another node":           {create, nodesResource, "", node("n2"), nil, other},
		"update another node":    {update, nodesResource, "", node("n2"), node("n2"), other},
		"another node's status":  {update, nodesResource, "status", node("n2"), node("n2"), other},
		"delete another node":    {remove, nodesResource, "", nil, node("n2"), other},
		"kubelet's labels":       {create, nodesResource, "", node("n1", nodeLabels(corev1.LabelHostname, "n1", "node.kubernetes.io/x", "y", "kubelet.kubernetes.io/x", "y", "mine", "x", "example.com/x", "y")), nil, ""},
		"a role":                 {create, nodesResource, "", node("n1", nodeLabels("node-role.kubernetes.io/control-plane", "")), nil, label + "node-role.kubernetes.io/control-plane"},
		"Kubernetes' labels":     {create, nodesResource, "", node("n1", nodeLabels("x.k8s.io/a", "", "kubernetes.io/b", "")), nil, label + "kubernetes.io/b, x.k8s.io/a"},
		"restricted labels":      {create, nodesResource, "", node("n1", nodeLabels("node-restriction.kubernetes.io/x", "")), nil, label + "node-restriction.kubernetes.io/x"},
		"below restricted":       {create, nodesResource, "", node("n1", nodeLabels("a.node-restriction.kubernetes.io/x", "")), nil, label + "a.node-restriction.kubernetes.io/x"},
		"no such domain":         {create, nodesResource, "", node("n1", nodeLabels("mykubernetes.io/x", "")), nil, ""},
		"add a label":            {update, nodesResource, "", node("n1", nodeLabels("node-restriction.kubernetes.io/x", "y")), node("n1"), labels + "node-restriction.kubernetes.io/x"},
		"change a label":         {update, nodesResource, "", node("n1", nodeLabels("node-restriction.kubernetes.io/x", "y")), node("n1", nodeLabels("node-restriction.kubernetes.io/x", "z")), labels + "node-restriction.kubernetes.io/x"},
		"remove a label":         {update, nodesResource, "", node("n1"), node("n1", nodeLabels("node-role.kubernetes.io/x", "")), labels + "node-role.kubernetes.io/x"},
		"keep a label":           {update, nodesResource, "", node("n1", nodeLabels("node-role.kubernetes.io/x", "")), node("n1", nodeLabels("node-role.kubernetes.io/x", "")), ""},
		"labels by the status":   {update, nodesResource, "status", node("n1", nodeLabels("node-role.kubernetes.io/x", "")), node("n1"), labels + "node-role.kubernetes.io/x"},
		"take a taint away":      {update, nodesResource, "", node("n1"), node("n1", tainted), `node "n1" is not allowed to modify taints`},
		"owners":                 {update, nodesResource, "", node("n1", func(n *corev1.Node) { n.OwnerReferences = []metav1.OwnerReference{self} }), node("n1"), `node "n1" is not allowed to modify ownerReferences`},
		"status":                 {update, nodesResource, "status", node("n1", func(n *corev1.Node) { n.Status.Phase = "x" }), node("n1"), ""},
		"lease":                  {create, leasesResource, "", lease("kube-node-lease", "n1"), nil, ""},
		"lease elsewhere":        {create, leasesResource, "", lease("kube-system", "n1"), nil, leases},
		"another node's lease":   {create, leasesResource, "", lease("kube-node-lease", "n2"), nil, lease1},
		"update another's lease": {update, leasesResource, "", lease("kube-node-lease", "n2"), lease("kube-node-lease", "n2"), lease1},
		"delete its lease":       {remove, leasesResource, "", nil, lease("kube-node-lease", "n1"), ""},
		"delete another's lease": {remove, leasesResource, "", nil, lease("kube-node-lease", "n2"), lease1},
		"CSINode":                {create, csiNodesResource, "", csiNode("n1"), nil, ""},
		"another's CSINode":      {create, csiNodesResource, "", csiNode("n2"), nil, csi},
		"delete another's":       {remove, csiNodesResource, "", nil, csiNode("n2"), csi},
		"pod that is no mirror":  {create, podsResource, "", podOn("n1"), nil, `pod does not have "kubernetes.io/config.mirror" annotation, node "n1" can only create mirror pods`},
		"mirror elsewhere":       {create, podsResource, "", podOn("n2", mirror), nil, `node "n1" can only create pods with spec.nodeName set to itself`},
		"mirror without owner":   {create, podsResource, "", podOn("n1", mirror), nil, owner},
		"mirror of two":          {create, podsResource, "", podOn("n1", mirror, ownedBy(self, self)), nil, `node "n1" can only create pods with a single owner reference set to itself`},
		"mirror of another":      {create, podsResource, "", podOn("n1", mirror, ownedBy(selfAnd(func(r *metav1.OwnerReference) { r.Name = "n2" }))), nil, owner},
		"mirror of a pod":        {create, podsResource, "", podOn("n1", mirror, ownedBy(selfAnd(func(r *metav1.OwnerReference) { r.Kind = "Pod" }))), nil, owner},
		"mirror not controlled":  {create, podsResource, "", podOn("n1", mirror, ownedBy(selfAnd(func(r *metav1.OwnerReference) { r.Controller = nil }))), nil, `node "n1" can only create pods with a controller owner reference set to itself`},
		"mirror that blocks":     {create, podsResource, "", podOn("n1", mirror, ownedBy(selfAnd(func(r *metav1.OwnerReference) { r.BlockOwnerDeletion = new(true) }))), nil, `node "n1" must not set blockOwnerDeletion on an owner reference`},
		"update a pod":           {update, podsResource, "", podOn("n1"), podOn("n1"), `unexpected operation "UPDATE", node "n1" can only create and delete mirror pods`},
		"bind a pod":             {create, podsResource, "binding", podOn("n1"), nil, `unexpected pod subresource "binding", only 'status' and 'eviction' are allowed`},
		"resize a pod":           {update, podsResource, "resize", podOn("n1"), podOn("n1"), `unexpected pod subresource "resize", only 'status' and 'eviction' are allowed`},
		"status of its pod":      {update, podsResource, "status", podOn("n1", func(p *corev1.Pod) { p.Status.Phase = "Failed" }), podOn("n1"), ""},
		"status of another's":    {update, podsResource, "status", podOn("n1"), podOn("n2"), `node "n1" can only update pod status for pods with spec.nodeName set to itself`},
		"labels by a status":     {update, podsResource, "status", podOn("n1", func(p *corev1.Pod) { p.Labels = map[string]string{"a": "b"} }), podOn("n1"), `node "n1" cannot update labels through pod status`},
		"claims by a status":     {update, podsResource, "status", podOn("n1", func(p *corev1.Pod) { p.Status.ResourceClaimStatuses = []corev1.PodResourceClaimStatus{{Name: "x"}} }), podOn("n1"), `node "n1" cannot update resource claim statues`},
		"claim's size": {update, claimsResource, "status", claimWith(func(c *corev1.PersistentVolumeClaim) {
			c.Status.Capacity = corev1.ResourceList{"storage": resource.MustParse("1Gi")}
		}), claim, ""},
		"claim's phase":       {update, claimsResource, "status", claimWith(func(c *corev1.PersistentVolumeClaim) { c.Status.Phase = corev1.ClaimBound }), claim, claims},
		"claim's health":      {update, claimsResource, "status", claimWith(func(c *corev1.PersistentVolumeClaim) { c.Status.HealthStatus = &corev1.VolumeHealthStatus{} }), claim, claims},
		"claim":               {update, claimsResource, "", claim, claim, "may only update PVC status"},
		"token":               {create, accountsResource, "token", podOn("n1"), nil, "unexpected type *v1.Pod"},
		"serving certificate": {create, requestsResource, "", signingRequest(t, certificatesv1.KubeletServingSignerName, "system:node:n1"), nil, ""},
		"another's serving":   {create, requestsResource, "", signingRequest(t, certificatesv1.KubeletServingSignerName, "system:node:n2"), nil, csr},
		"another's client":    {create, requestsResource, "", signingRequest(t, certificatesv1.KubeAPIServerClientKubeletSignerName, "system:node:n2"), nil, csr},
		"other signers":       {create, requestsResource, "", signingRequest(t, certificatesv1.KubeAPIServerClientSignerName, "jane"), nil, ""},
		"no request":          {create, requestsResource, "", &certificatesv1.CertificateSigningRequest{Spec: certificatesv1.CertificateSigningRequestSpec{SignerName: certificatesv1.KubeletServingSignerName}}, nil, "unable to parse csr: PEM block type must be CERTIFICATE REQUEST"},
	} {
		t.Run(name, func(t *testing.T) {
			a := attributes(nodeN1, tc.op, tc.resource, tc.subresource, tc.obj, tc.old)
			wantRefusal(t, a, (&nodeRestriction{}).Admit(t.Context(), a, nil), tc.want)
		})
	}
}

func TestWhoIsANode(t *testing.T) {
	for name, tc := range map[string]struct {
		who  user.Info
		want string
	}{
		"node":            {nodeN1, `node "n1" is not allowed to modify node "n2"`},
		"without a name":  {&user.DefaultInfo{Name: "system:node:", Groups: []string{user.NodesGroup}}, `could not determine node from user "system:node:"`},
		"not of nodes":    {&user.DefaultInfo{Name: "system:node:n1"}, ""},
		"not called so":   {&user.DefaultInfo{Name: "n1", Groups: []string{user.NodesGroup}}, ""},
		"somebody else":   {&user.DefaultInfo{Name: "jane", Groups: []string{user.SystemPrivilegedGroup}}, ""},
		"nobody is known": {nil, ""},
	} {
		t.Run(name, func(t *testing.T) {
			a := attributes(tc.who, admission.Create, nodesResource, "", node("n2"), nil)
			wantRefusal(t, a, (&nodeRestriction{}).Admit(t.Context(), a, nil), tc.want)
		})
	}
}

func TestWhatAMirrorPodMayNotReferTo(t *testing.T) {
	volume := func(s corev1.VolumeSource) func(*corev1.Pod) {
		return func(p *corev1.Pod) { p.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: s}} }
	}
	projected := func(s corev1.VolumeProjection) func(*corev1.Pod) {
		return volume(corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{Sources: []corev1.VolumeProjection{s}}})
	}
	env := func(e *corev1.EnvVarSource) func(*corev1.Pod) {
		return func(p *corev1.Pod) { p.Spec.Containers = []corev1.Container{{Env: []corev1.EnvVar{{ValueFrom: e}}}} }
	}
	envFrom := func(e corev1.EnvFromSource) func(*corev1.Pod) {
		return func(p *corev1.Pod) { p.Spec.InitContainers = []corev1.Container{{EnvFrom: []corev1.EnvFromSource{e}}} }
	}
	for name, tc := range map[string]struct {
		pod  func(*corev1.Pod)
		want string
	}{
		"nothing":          {func(*corev1.Pod) {}, ""},
		"host path":        {volume(corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{}}), ""},
		"fields":           {env(&corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{}}), ""},
		"account":          {func(p *corev1.Pod) { p.Spec.ServiceAccountName = "sa" }, "serviceaccounts"},
		"pull secret":      {func(p *corev1.Pod) { p.Spec.ImagePullSecrets = []corev1.LocalObjectReference{{Name: "s"}} }, "secrets"},
		"secret":           {volume(corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "s"}}), "secrets"},
		"projected secret": {projected(corev1.VolumeProjection{Secret: &corev1.SecretProjection{}}), "secrets"},
		"env secret":       {env(&corev1.EnvVarSource{SecretKeyRef: &corev1.SecretKeySelector{}}), "secrets"},
		"envFrom secret":   {envFrom(corev1.EnvFromSource{SecretRef: &corev1.SecretEnvSource{}}), "secrets"},
		"config map":       {volume(corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{}}), "configmaps"},
		"projected map":    {projected(corev1.VolumeProjection{ConfigMap: &corev1.ConfigMapProjection{}}), "configmaps"},
		"env map":          {env(&corev1.EnvVarSource{ConfigMapKeyRef: &corev1.ConfigMapKeySelector{}}), "configmaps"},
		"envFrom map":      {envFrom(corev1.EnvFromSource{ConfigMapRef: &corev1.ConfigMapEnvSource{}}), "configmaps"},
		"claim":            {volume(corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{}}), "persistentvolumeclaims"},
		"ephemeral claim":  {volume(corev1.VolumeSource{Ephemeral: &corev1.EphemeralVolumeSource{}}), "persistentvolumeclaims"},
		"resource claim":   {func(p *corev1.Pod) { p.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "c"}} }, "resourceclaims"},
		"token":            {projected(corev1.VolumeProjection{ServiceAccountToken: &corev1.ServiceAccountTokenProjection{}}), "serviceaccounts"},
		"trust bundle":     {projected(corev1.VolumeProjection{ClusterTrustBundle: &corev1.ClusterTrustBundleProjection{}}), "clustertrustbundles"},
		"certificate":      {projected(corev1.VolumeProjection{PodCertificate: &corev1.PodCertificateProjection{}}), "podcertificates"},
	} {
		if got := referenced(podOn("n1", tc.pod)); got != tc.want {
			t.Errorf("%s: refers to %q, want %q", name, got, tc.want)
		}
	}
}
