package plugins

import (
	"context"
	"fmt"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	fwk "k8s.io/kube-scheduler/framework"

	"wherry.dev/internal/api/pods"
	"wherry.dev/internal/scheduler/plugins/devices"
)

// Plugins that look at nothing but the pod and the node sign pods: for pods with equal signatures they
// say the same about a node, as long as that does not change (KEP-5598).

var (
	_ fwk.SignPlugin = NodeUnschedulable{}
	_ fwk.SignPlugin = NodeName{}
	_ fwk.SignPlugin = TaintToleration{}
	_ fwk.SignPlugin = NodeAffinity{}
	_ fwk.SignPlugin = NodePorts{}
	_ fwk.SignPlugin = NodeResourcesFit{}
	_ fwk.SignPlugin = NodeResourcesBalancedAllocation{}
	_ fwk.SignPlugin = ImageLocality{}
)

// marshaler is a part of a pod, in protobuf.
type marshaler interface{ Marshal() ([]byte, error) }

// signature returns a fragment with parts of a pod. Maps in them are written in the order of their keys.
func signature(key string, parts ...marshaler) ([]fwk.SignFragment, *fwk.Status) {
	var b strings.Builder
	for _, p := range parts {
		data, err := p.Marshal()
		if err != nil {
			return nil, fwk.AsStatus(fmt.Errorf("sign %s: %w", key, err))
		}
		fmt.Fprintf(&b, "%d:", len(data))
		b.Write(data)
	}
	return []fwk.SignFragment{{Key: key, Value: b.String()}}, nil
}

func signTolerations(pod *v1.Pod) ([]fwk.SignFragment, *fwk.Status) {
	return signature(fwk.TolerationsSignerName, &v1.PodSpec{Tolerations: pod.Spec.Tolerations})
}

func signResources(pod *v1.Pod) ([]fwk.SignFragment, *fwk.Status) {
	parts := []marshaler{&v1.PodSpec{Resources: pod.Spec.Resources, Overhead: pod.Spec.Overhead}}
	for i := range pod.Spec.InitContainers {
		c := &pod.Spec.InitContainers[i]
		parts = append(parts, &v1.Container{Resources: c.Resources, RestartPolicy: c.RestartPolicy})
	}
	for i := range pod.Spec.Containers {
		parts = append(parts, &pod.Spec.Containers[i].Resources)
	}
	return signature(fwk.ResourcesSignerName, parts...)
}

// SignPod signs the tolerations.
func (NodeUnschedulable) SignPod(_ context.Context, pod *v1.Pod) ([]fwk.SignFragment, *fwk.Status) {
	return signTolerations(pod)
}

// SignPod signs the name.
func (NodeName) SignPod(_ context.Context, pod *v1.Pod) ([]fwk.SignFragment, *fwk.Status) {
	return []fwk.SignFragment{{Key: fwk.NodeNameSignerName, Value: pod.Spec.NodeName}}, nil
}

// SignPod signs the tolerations.
func (TaintToleration) SignPod(_ context.Context, pod *v1.Pod) ([]fwk.SignFragment, *fwk.Status) {
	return signTolerations(pod)
}

// SignPod signs the node selector and the affinity to nodes.
func (NodeAffinity) SignPod(_ context.Context, pod *v1.Pod) ([]fwk.SignFragment, *fwk.Status) {
	part := &v1.PodSpec{NodeSelector: pod.Spec.NodeSelector}
	if a := pod.Spec.Affinity; a != nil {
		part.Affinity = &v1.Affinity{NodeAffinity: a.NodeAffinity}
	}
	return signature(fwk.NodeAffinitySignerName, part)
}

// SignPod signs the host ports.
func (NodePorts) SignPod(_ context.Context, pod *v1.Pod) ([]fwk.SignFragment, *fwk.Status) {
	var parts []marshaler
	for _, p := range pods.HostPorts(pod) {
		parts = append(parts, &v1.ContainerPort{HostIP: p.HostIP, HostPort: p.HostPort, Protocol: p.Protocol})
	}
	return signature(fwk.HostPortsSignerName, parts...)
}

// SignPod signs the requests, unless one of them may be found among devices, of which the node says nothing.
func (f NodeResourcesFit) SignPod(_ context.Context, pod *v1.Pod) ([]fwk.SignFragment, *fwk.Status) {
	if slices.ContainsFunc(devices.ExtendedResources(pod), f.backed) {
		return nil, fwk.NewStatus(fwk.Unschedulable, "pods with extended resources of device classes are not signable")
	}
	return signResources(pod)
}

// SignPod signs the requests.
func (NodeResourcesBalancedAllocation) SignPod(_ context.Context, pod *v1.Pod) ([]fwk.SignFragment, *fwk.Status) {
	return signResources(pod)
}

// SignPod signs the images' names, and how many containers there are.
func (ImageLocality) SignPod(_ context.Context, pod *v1.Pod) ([]fwk.SignFragment, *fwk.Status) {
	parts := []marshaler{}
	for i := range pod.Spec.InitContainers {
		parts = append(parts, &v1.Container{Name: "init", Image: pod.Spec.InitContainers[i].Image})
	}
	for i := range pod.Spec.Containers {
		parts = append(parts, &v1.Container{Image: pod.Spec.Containers[i].Image})
	}
	for _, v := range pod.Spec.Volumes {
		if v.Image != nil {
			parts = append(parts, &v1.ImageVolumeSource{Reference: v.Image.Reference})
		}
	}
	return signature(fwk.ImageNamesSignerName, parts...)
}
