package podresources

import (
	"context"
	"slices"

	v1 "k8s.io/api/core/v1"
	podresourcesapi "k8s.io/kubelet/pkg/apis/podresources/v1"
	"k8s.io/kubelet/pkg/apis/podresources/v1alpha1"

	"wherry.dev/internal/kubelet/metrics"
)

// alpha serves v1alpha1, by which agents ask that are older than v1. It has devices of plugins alone, and no sidecars.
type alpha struct {
	v1alpha1.UnimplementedPodResourcesListerServer
	server *server
}

// List implements v1alpha1.PodResourcesListerServer.
func (a alpha) List(context.Context, *v1alpha1.ListPodResourcesRequest) (*v1alpha1.ListPodResourcesResponse, error) {
	metrics.PodResourcesAlpha()
	out := &v1alpha1.ListPodResourcesResponse{}
	near := a.server.nodes()
	for _, p := range a.server.holding() {
		pod := &v1alpha1.PodResources{Name: p.Pod.Name, Namespace: p.Pod.Namespace}
		for _, c := range a.server.of(p, near).GetContainers() {
			if !slices.ContainsFunc(p.Pod.Spec.Containers, func(app v1.Container) bool { return app.Name == c.GetName() }) {
				continue
			}
			pod.Containers = append(pod.Containers, &v1alpha1.ContainerResources{Name: c.GetName(), Devices: byResource(c.GetDevices())})
		}
		out.PodResources = append(out.PodResources, pod)
	}
	return out, nil
}

// byResource has the devices of each resource together; they are in order.
func byResource(all []*podresourcesapi.ContainerDevices) (out []*v1alpha1.ContainerDevices) {
	for _, d := range all {
		if n := len(out); n > 0 && out[n-1].GetResourceName() == d.GetResourceName() {
			out[n-1].DeviceIds = append(out[n-1].DeviceIds, d.GetDeviceIds()...)
			continue
		}
		out = append(out, &v1alpha1.ContainerDevices{ResourceName: d.GetResourceName(), DeviceIds: slices.Clone(d.GetDeviceIds())})
	}
	return out
}
