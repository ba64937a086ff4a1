package volume

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"strconv"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	authenticationv1 "k8s.io/api/authentication/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"wherry.dev/internal/kubelet/csi"
)

// capability is how the pod uses the volume, in CSI's terms.
func (p *csiJob) capability(can csi.Abilities) *csipb.VolumeCapability {
	mode := v1.ReadWriteOnce
	var flags []string
	if p.pv != nil {
		flags = p.pv.Spec.MountOptions
		if len(p.pv.Spec.AccessModes) > 0 {
			mode = p.pv.Spec.AccessModes[0]
		}
	}
	out := &csipb.VolumeCapability{AccessMode: &csipb.VolumeCapability_AccessMode{
		Mode: accessMode(mode, can[csipb.NodeServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER]),
	}}
	if p.block {
		out.AccessType = &csipb.VolumeCapability_Block{Block: &csipb.VolumeCapability_BlockVolume{}}
		return out
	}
	m := &csipb.VolumeCapability_MountVolume{FsType: p.fsType(), MountFlags: flags}
	if group := fsGroup(p.pod); group != nil && can[csipb.NodeServiceCapability_RPC_VOLUME_MOUNT_GROUP] {
		m.VolumeMountGroup = strconv.FormatInt(*group, 10)
	}
	out.AccessType = &csipb.VolumeCapability_Mount{Mount: m}
	return out
}

// accessMode translates; finer says that the driver tells apart the ways in which one node writes.
func accessMode(mode v1.PersistentVolumeAccessMode, finer bool) csipb.VolumeCapability_AccessMode_Mode {
	switch {
	case mode == v1.ReadOnlyMany:
		return csipb.VolumeCapability_AccessMode_MULTI_NODE_READER_ONLY
	case mode == v1.ReadWriteMany:
		return csipb.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER
	case mode == v1.ReadWriteOncePod && finer:
		return csipb.VolumeCapability_AccessMode_SINGLE_NODE_SINGLE_WRITER
	case mode == v1.ReadWriteOnce && finer:
		return csipb.VolumeCapability_AccessMode_SINGLE_NODE_MULTI_WRITER
	}
	return csipb.VolumeCapability_AccessMode_SINGLE_NODE_WRITER
}

func (p *csiJob) fsType() string {
	if p.pv != nil {
		return p.pv.Spec.CSI.FSType
	}
	return ptr.Deref(p.own.CSI.FSType, "")
}

// secrets returns the content of a secret that is meant for the driver.
func (p *csiJob) secrets(ctx context.Context, ref *v1.SecretReference) (map[string]string, error) {
	out := map[string]string{}
	if ref == nil {
		return out, nil
	}
	secret, err := p.c.Client.CoreV1().Secrets(ref.Namespace).Get(ctx, ref.Name, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("failed to find the secret %s in the namespace %s with error: %w", ref.Name, ref.Namespace, err)
	}
	for k, v := range secret.Data {
		out[k] = string(v)
	}
	return out, nil
}

func (p *csiJob) publishRequest(ctx context.Context, can csi.Abilities) (*csipb.NodePublishVolumeRequest, error) {
	req := &csipb.NodePublishVolumeRequest{
		VolumeId: p.handle, PublishContext: p.context, StagingTargetPath: p.files.staging, TargetPath: p.target,
		VolumeCapability: p.capability(can), Readonly: p.readOnly, VolumeContext: map[string]string{},
	}
	var ref *v1.SecretReference
	if p.pv != nil {
		ref = p.pv.Spec.CSI.NodePublishSecretRef
		maps.Copy(req.VolumeContext, p.pv.Spec.CSI.VolumeAttributes)
	} else {
		if r := p.own.CSI.NodePublishSecretRef; r != nil {
			ref = &v1.SecretReference{Namespace: p.pod.Namespace, Name: r.Name}
		}
		maps.Copy(req.VolumeContext, p.own.CSI.VolumeAttributes)
		req.Readonly = ptr.Deref(p.own.CSI.ReadOnly, false)
	}
	var err error
	if req.Secrets, err = p.secrets(ctx, ref); err != nil {
		return nil, fmt.Errorf("fetching NodePublishSecretRef %s/%s failed: %w", ref.Namespace, ref.Name, err)
	}
	if p.driver == nil {
		return req, nil
	}
	if ptr.Deref(p.driver.Spec.PodInfoOnMount, false) {
		maps.Copy(req.VolumeContext, map[string]string{
			"csi.storage.k8s.io/pod.name": p.pod.Name, "csi.storage.k8s.io/pod.namespace": p.pod.Namespace,
			"csi.storage.k8s.io/pod.uid": string(p.pod.UID), "csi.storage.k8s.io/serviceAccount.name": p.pod.Spec.ServiceAccountName,
			"csi.storage.k8s.io/ephemeral": strconv.FormatBool(p.pv == nil),
		})
	}
	return req, p.addTokens(ctx, req)
}

const tokensKey = "csi.storage.k8s.io/serviceAccount.tokens"

// addTokens passes on the tokens of the pod's service account that the driver asks for.
func (p *csiJob) addTokens(ctx context.Context, req *csipb.NodePublishVolumeRequest) error {
	if len(p.driver.Spec.TokenRequests) == 0 {
		return nil
	}
	all := map[string]authenticationv1.TokenRequestStatus{}
	for _, want := range p.driver.Spec.TokenRequests {
		src := &v1.ServiceAccountTokenProjection{Audience: want.Audience, ExpirationSeconds: want.ExpirationSeconds}
		got, err := p.m.Tokens.Issue(ctx, p.pod, src)
		if err != nil {
			return err
		}
		all[want.Audience] = got
	}
	doc, err := json.Marshal(all)
	if err != nil {
		return err
	}
	if ptr.Deref(p.driver.Spec.ServiceAccountTokenInSecrets, false) {
		req.Secrets[tokensKey] = string(doc)
		return nil
	}
	req.VolumeContext[tokensKey] = string(doc)
	return nil
}
