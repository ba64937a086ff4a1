package nodeauthorizer

import (
	"context"
	"errors"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
)

// cluster stands for storage: it may know more pods than the index.
type cluster struct{ pods []*corev1.Pod }

func (c cluster) PodsOn(_ context.Context, node string) (out []corev1.Pod, err error) {
	for _, p := range c.pods {
		if p.Spec.NodeName == node {
			out = append(out, *p)
		}
	}
	return out, nil
}

func (cluster) Volume(_ context.Context, name string) (*corev1.PersistentVolume, error) {
	if name == "unclaimed" {
		return &corev1.PersistentVolume{}, nil
	}
	return &corev1.PersistentVolume{Spec: corev1.PersistentVolumeSpec{ClaimRef: &corev1.ObjectReference{Namespace: "ns", Name: "of-" + name}}}, nil
}

func (cluster) VolumeOf(_ context.Context, namespace, claim string) (*corev1.PersistentVolume, error) {
	ref := &corev1.SecretReference{Namespace: "drivers", Name: "of-" + claim}
	pv := &corev1.PersistentVolume{}
	if namespace == "ns" && claim != "unbound" {
		pv.Spec.CSI = &corev1.CSIPersistentVolumeSource{NodeStageSecretRef: ref}
		pv.Spec.ISCSI = &corev1.ISCSIPersistentVolumeSource{SecretRef: &corev1.SecretReference{Name: "chap-of-" + claim}}
		pv.Spec.ClaimRef = &corev1.ObjectReference{Namespace: namespace, Name: claim}
	}
	return pv, nil
}

func (cluster) NodeOf(_ context.Context, _ schema.GroupResource, _, name string) (string, error) {
	node, ok := strings.CutPrefix(name, "on-")
	if !ok {
		return "", errors.New("no such object")
	}
	return node, nil
}

func pod(name, node string, change ...func(*corev1.Pod)) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name}, Spec: corev1.PodSpec{NodeName: node}}
	for _, f := range change {
		f(p)
	}
	return p
}

func volumes(sources ...corev1.VolumeSource) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		for _, s := range sources {
			p.Spec.Volumes = append(p.Spec.Volumes, corev1.Volume{Name: "v", VolumeSource: s})
		}
	}
}

func environment(c *corev1.Container, prefix string) {
	name := func(what string) corev1.LocalObjectReference { return corev1.LocalObjectReference{Name: prefix + what} }
	c.EnvFrom = []corev1.EnvFromSource{
		{SecretRef: &corev1.SecretEnvSource{LocalObjectReference: name("from")}},
		{ConfigMapRef: &corev1.ConfigMapEnvSource{LocalObjectReference: name("from")}},
	}
	c.Env = []corev1.EnvVar{{Value: "plain"},
		{ValueFrom: &corev1.EnvVarSource{SecretKeyRef: &corev1.SecretKeySelector{LocalObjectReference: name("env")}}},
		{ValueFrom: &corev1.EnvVarSource{ConfigMapKeyRef: &corev1.ConfigMapKeySelector{LocalObjectReference: name("env")}}},
	}
}

// uses makes a pod refer to one object in every possible way.
func uses(p *corev1.Pod) {
	local := func(name string) *corev1.LocalObjectReference { return &corev1.LocalObjectReference{Name: name} }
	p.Spec.ServiceAccountName = "sa"
	p.Spec.ImagePullSecrets = []corev1.LocalObjectReference{*local("pull")}
	p.Spec.InitContainers, p.Spec.Containers = make([]corev1.Container, 1), make([]corev1.Container, 1)
	environment(&p.Spec.InitContainers[0], "init-")
	environment(&p.Spec.Containers[0], "app-")
	volumes(
		corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "volume"}},
		corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: *local("volume")}},
		corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "of-pv"}},
		corev1.VolumeSource{Ephemeral: &corev1.EphemeralVolumeSource{}},
		corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{Sources: []corev1.VolumeProjection{
			{Secret: &corev1.SecretProjection{LocalObjectReference: *local("projected")}},
			{ConfigMap: &corev1.ConfigMapProjection{LocalObjectReference: *local("projected")}},
		}}},
		corev1.VolumeSource{CSI: &corev1.CSIVolumeSource{NodePublishSecretRef: local("csi")}},
		corev1.VolumeSource{CephFS: &corev1.CephFSVolumeSource{SecretRef: local("cephfs")}},
		corev1.VolumeSource{RBD: &corev1.RBDVolumeSource{SecretRef: local("rbd")}},
		corev1.VolumeSource{ISCSI: &corev1.ISCSIVolumeSource{SecretRef: local("iscsi")}},
		corev1.VolumeSource{FlexVolume: &corev1.FlexVolumeSource{SecretRef: local("flex")}},
		corev1.VolumeSource{Cinder: &corev1.CinderVolumeSource{SecretRef: local("cinder")}},
		corev1.VolumeSource{ScaleIO: &corev1.ScaleIOVolumeSource{SecretRef: local("scaleio")}},
		corev1.VolumeSource{StorageOS: &corev1.StorageOSVolumeSource{SecretRef: local("storageos")}},
		corev1.VolumeSource{AzureFile: &corev1.AzureFileVolumeSource{SecretName: "azure"}},
	)(p)
	p.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "c", ResourceClaimName: new("named")}}
	p.Status.ResourceClaimStatuses = []corev1.PodResourceClaimStatus{{Name: "d", ResourceClaimName: new("made")}}
	p.Status.ExtendedResourceClaimStatus = &corev1.PodExtendedResourceClaimStatus{ResourceClaimName: "extended"}
	debug := corev1.Container{}
	environment(&debug, "debug-")
	p.Spec.EphemeralContainers = []corev1.EphemeralContainer{{EphemeralContainerCommon: corev1.EphemeralContainerCommon{Env: debug.Env, EnvFrom: debug.EnvFrom}}}
}

func isMirror(p *corev1.Pod) { p.Annotations = map[string]string{corev1.MirrorPodAnnotationKey: "x"} }

// may asks for node n1: "get secrets ns/name", "get group:resource/sub name ?field=value".
func may(t *testing.T, a *Authorizer, request string) bool {
	t.Helper()
	request, selector, _ := strings.Cut(request, " ?")
	words := append(strings.Fields(request), "")
	attrs := authorizer.AttributesRecord{
		User: &user.DefaultInfo{Name: "system:node:n1", Groups: []string{user.NodesGroup}}, ResourceRequest: true, Verb: words[0], Name: words[2],
	}
	resource := words[1]
	if group, rest, ok := strings.Cut(resource, ":"); ok {
		attrs.APIGroup, resource = group, rest
	}
	attrs.Resource, attrs.Subresource, _ = strings.Cut(resource, "/")
	if ns, name, ok := strings.Cut(words[2], "/"); ok {
		attrs.Namespace, attrs.Name = ns, name
	}
	s, err := fields.ParseSelector(selector)
	if err != nil {
		t.Fatal(err)
	}
	attrs.FieldSelectorRequirements = s.Requirements()
	decision, _, err := a.Authorize(t.Context(), attrs)
	if err != nil || decision == authorizer.DecisionDeny {
		t.Fatalf("%q: %v, %v", request, decision, err)
	}
	return decision == authorizer.DecisionAllow
}

func authorizerOf(index, stored []*corev1.Pod) *Authorizer {
	x := NewIndex()
	for _, p := range index {
		x.SetPod(p)
	}
	return NewAuthorizer(x, cluster{stored})
}

func want(t *testing.T, a *Authorizer, want bool, requests string) {
	t.Helper()
	for r := range strings.SplitSeq(strings.TrimSpace(requests), "\n") {
		if r = strings.TrimSpace(r); may(t, a, r) != want {
			t.Errorf("%q: %t, want %t", r, !want, want)
		}
	}
}

const ofItsPod = `get secrets ns/pull
	get secrets ns/volume
	list secrets ns/volume
	watch secrets ns/volume
	get secrets ns/projected
	get secrets ns/init-env
	get secrets ns/init-from
	get secrets ns/app-env
	get secrets ns/app-from
	get secrets ns/debug-env
	get secrets ns/debug-from
	get secrets ns/csi
	get secrets ns/cephfs
	get secrets ns/rbd
	get secrets ns/iscsi
	get secrets ns/flex
	get secrets ns/cinder
	get secrets ns/scaleio
	get secrets ns/storageos
	get secrets ns/azure
	get configmaps ns/volume
	watch configmaps ns/projected
	get configmaps ns/app-env
	get configmaps ns/debug-from
	get persistentvolumeclaims ns/of-pv
	get persistentvolumeclaims ns/p-v
	list persistentvolumeclaims ns/of-pv
	watch persistentvolumeclaims ns/p-v
	update persistentvolumeclaims/status ns/of-pv
	get persistentvolumes pv
	get serviceaccounts ns/sa
	create serviceaccounts/token ns/sa
	get resource.k8s.io:resourceclaims ns/named
	get resource.k8s.io:resourceclaims ns/made
	get resource.k8s.io:resourceclaims ns/extended
	get pods ns/p
	watch pods ns/p`

func TestANodeReadsWhatItsPodsReferTo(t *testing.T) {
	p := pod("p", "n1", uses)
	want(t, authorizerOf([]*corev1.Pod{p}, nil), true, ofItsPod)
	t.Run("the index does not know it yet", func(t *testing.T) { want(t, authorizerOf(nil, []*corev1.Pod{p}), true, ofItsPod) })
	t.Run("on another node", func(t *testing.T) {
		q := pod("p", "n2", uses)
		want(t, authorizerOf([]*corev1.Pod{q}, []*corev1.Pod{q}), false, ofItsPod)
	})
	t.Run("not bound", func(t *testing.T) {
		q := pod("p", "", uses)
		want(t, authorizerOf([]*corev1.Pod{q}, []*corev1.Pod{q}), false, ofItsPod)
	})
	t.Run("its own mirror", func(t *testing.T) {
		q := pod("p", "n1", uses, isMirror)
		a := authorizerOf([]*corev1.Pod{q}, []*corev1.Pod{q})
		refs, _, _ := strings.Cut(ofItsPod, "\tget pods")
		want(t, a, false, refs)
		want(t, a, true, "get pods ns/p")
	})
}

func TestANodeReadsNothingElse(t *testing.T) {
	a := authorizerOf([]*corev1.Pod{pod("p", "n1", uses), pod("q", "n2", volumes(corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "q"}}))}, nil)
	want(t, a, false, `get secrets ns/other
		get secrets ns/q
		get secrets other/volume
		list secrets
		list secrets ns/
		update secrets ns/volume
		delete secrets ns/volume
		get secrets/status ns/volume
		create configmaps ns/volume
		list persistentvolumeclaims
		watch persistentvolumeclaims ns/
		list persistentvolumeclaims ns/other
		get persistentvolumeclaims other/of-pv
		get persistentvolumeclaims/status ns/of-pv
		update persistentvolumeclaims ns/of-pv
		get persistentvolumes other
		get persistentvolumes unclaimed
		list persistentvolumes
		list serviceaccounts ns/sa
		create serviceaccounts ns/sa
		create serviceaccounts/token ns/other
		update resource.k8s.io:resourceclaims ns/named
		get resource.k8s.io:resourceclaims/status ns/named
		get pods ns/q
		list pods
		watch pods ns/q
		update pods ns/p
		create pods/binding ns/p
		create pods/exec ns/p
		get pods/log ns/p
		delete pods/eviction ns/p`)
}

func TestANodesOwnObjects(t *testing.T) {
	a := authorizerOf(nil, nil)
	want(t, a, true, `get nodes n1
		watch nodes n1
		create nodes
		delete nodes n1
		update nodes/status n1
		get coordination.k8s.io:leases kube-node-lease/n1
		create coordination.k8s.io:leases kube-node-lease/
		update coordination.k8s.io:leases kube-node-lease/n1
		get storage.k8s.io:csinodes n1
		create storage.k8s.io:csinodes
		get storage.k8s.io:volumeattachments on-n1
		list pods ?spec.nodeName=n1
		watch pods ?spec.nodeName=n1,status.phase=Running
		create pods ns/p
		delete pods ns/p
		patch pods/status ns/p
		create pods/eviction ns/p
		create certificates.k8s.io:certificatesigningrequests
		get certificates.k8s.io:podcertificaterequests ns/on-n1
		list certificates.k8s.io:podcertificaterequests ?spec.nodeName=n1
		create certificates.k8s.io:podcertificaterequests ns/
		list services
		watch node.k8s.io:runtimeclasses
		create events ns/`)
	want(t, a, false, `get nodes n2
		list nodes
		delete nodes n2
		delete nodes
		delete nodes/status n1
		get nodes/proxy n1
		get coordination.k8s.io:leases kube-node-lease/n2
		list coordination.k8s.io:leases kube-node-lease/
		get coordination.k8s.io:leases kube-system/n1
		get storage.k8s.io:csinodes n2
		list storage.k8s.io:csinodes
		update storage.k8s.io:csinodes/status n1
		get storage.k8s.io:volumeattachments on-n2
		get storage.k8s.io:volumeattachments
		list storage.k8s.io:volumeattachments
		list pods ?spec.nodeName=n2
		list pods ?spec.nodeName!=n1
		list pods ?status.phase=Running
		get certificates.k8s.io:podcertificaterequests ns/on-n2
		list certificates.k8s.io:podcertificaterequests
		update certificates.k8s.io:podcertificaterequests/status ns/on-n1
		delete certificates.k8s.io:podcertificaterequests ns/on-n1
		update certificates.k8s.io:certificatesigningrequests/approval x
		create services ns/
		list rbac.authorization.k8s.io:roles`)
	a.VolumeHealth = true
	want(t, a, true, `get storage.k8s.io:csinodes/status n1
		update storage.k8s.io:csinodes/status n1
		patch storage.k8s.io:csinodes/status n1`)
	want(t, a, false, `update storage.k8s.io:csinodes/status n2
		create storage.k8s.io:csinodes/status n1
		delete storage.k8s.io:csinodes/status n1
		update storage.k8s.io:csinodes/other n1`)
}

// TestANodeClearsOnlyItsOwnResourceSlices: the rule that allows it used to have no limit.
func TestANodeClearsOnlyItsOwnResourceSlices(t *testing.T) {
	a := authorizerOf(nil, nil)
	want(t, a, true, "deletecollection resource.k8s.io:resourceslices ?spec.nodeName=n1")
	want(t, a, false, `deletecollection resource.k8s.io:resourceslices
		deletecollection resource.k8s.io:resourceslices ?spec.nodeName=n2`)
}

func TestRightsEndWithThePod(t *testing.T) {
	x := NewIndex()
	a := NewAuthorizer(x, cluster{})
	secretOf := func(name string) func(*corev1.Pod) {
		return volumes(corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: name}})
	}
	x.SetPod(pod("p", "", secretOf("s")))
	want(t, a, false, "get secrets ns/s")
	x.SetPod(pod("p", "n1", secretOf("s")))
	x.SetPod(pod("q", "n1", secretOf("s")))
	want(t, a, true, "get secrets ns/s")
	x.DeletePod(types.NamespacedName{Namespace: "ns", Name: "p"})
	want(t, a, true, "get secrets ns/s") // q still uses it
	x.DeletePod(types.NamespacedName{Namespace: "ns", Name: "q"})
	want(t, a, false, "get secrets ns/s")
	x.SetPod(pod("p", "n1", secretOf("s")))
	x.SetPod(pod("p", "n2", secretOf("s"))) // deleted and created again, unseen
	want(t, a, false, "get secrets ns/s")
	x.DeletePod(types.NamespacedName{Namespace: "ns", Name: "p"})
	if len(x.pods)+len(x.uses)+len(x.bound) > 0 {
		t.Errorf("left: %v %v %v", x.pods, x.uses, x.bound)
	}
}

func TestOthersAreNotTheNodeAuthorizers(t *testing.T) {
	a := authorizerOf(nil, nil)
	for name, u := range map[string]user.Info{
		"user": &user.DefaultInfo{Name: "jane"}, "not of nodes": &user.DefaultInfo{Name: "system:node:n1"},
		"no name": &user.DefaultInfo{Name: "system:node:", Groups: []string{user.NodesGroup}},
	} {
		decision, _, err := a.Authorize(t.Context(), authorizer.AttributesRecord{User: u, Verb: "list", Resource: "services", ResourceRequest: true})
		if err != nil || decision != authorizer.DecisionNoOpinion {
			t.Errorf("%s: %v, %v", name, decision, err)
		}
	}
	if _, _, incomplete, err := a.RulesFor(t.Context(), &user.DefaultInfo{Name: "system:node:n1", Groups: []string{user.NodesGroup}}, ""); !incomplete || err == nil {
		t.Error("a node's rights are listed")
	}
}

func TestANodeGetsTheSecretsOfItsVolumes(t *testing.T) {
	claims := func(name string) corev1.VolumeSource {
		return corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: name}}
	}
	a := NewAuthorizer(NewIndex(), cluster{pods: []*corev1.Pod{pod("p", "n", volumes(claims("c"), claims("unbound")))}})
	for _, tc := range []struct {
		node, verb, namespace, name string
		want                        authorizer.Decision
	}{
		{"n", "get", "drivers", "of-c", authorizer.DecisionAllow},
		{"n", "get", "ns", "chap-of-c", authorizer.DecisionAllow},
		{"n", "list", "ns", "chap-of-c", authorizer.DecisionNoOpinion},
		{"n", "get", "drivers", "chap-of-c", authorizer.DecisionNoOpinion},
		{"n", "get", "ns", "chap-of-other", authorizer.DecisionNoOpinion},
		{"n", "list", "drivers", "of-c", authorizer.DecisionNoOpinion},
		{"n", "get", "ns", "of-c", authorizer.DecisionNoOpinion},
		{"n", "get", "drivers", "of-unbound", authorizer.DecisionNoOpinion},
		{"n", "get", "drivers", "of-other", authorizer.DecisionNoOpinion},
		{"other", "get", "drivers", "of-c", authorizer.DecisionNoOpinion},
	} {
		got, _, err := a.Authorize(t.Context(), authorizer.AttributesRecord{
			User: &user.DefaultInfo{Name: UserName(tc.node), Groups: []string{user.NodesGroup}}, Verb: tc.verb, APIVersion: "v1",
			Namespace: tc.namespace, Resource: "secrets", Name: tc.name, ResourceRequest: true,
		})
		if err != nil || got != tc.want {
			t.Errorf("%+v: got %v, %v", tc, got, err)
		}
	}
}
