package devices

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"
	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"wherry.dev/internal/api/pods"
	"wherry.dev/internal/kubelet/criconfig"
	"wherry.dev/internal/kubelet/metrics"
	"wherry.dev/internal/kubelet/podplan"
)

// Waits reports whether a pod asks for devices of a plugin that was there before and may still come back.
func (m *Manager) Waits(pod *v1.Pod) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	for c := range pods.Containers(&pod.Spec) {
		for name := range c.Resources.Limits {
			if of := m.known[string(name)]; of != nil && of.plugin == nil {
				return true
			}
		}
	}
	return false
}

// Prefers reports whether a plugin of which a pod asks for devices has preferences.
func (m *Manager) Prefers(pod *v1.Pod) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	for c := range pods.Containers(&pod.Spec) {
		for name := range c.Resources.Limits {
			if of := m.known[string(name)]; of != nil && of.since.IsZero() && of.plugin.options.GetGetPreferredAllocationAvailable() {
				return true
			}
		}
	}
	return false
}

// Allocate asks the plugins what the containers need for the devices that were chosen for them, and returns the devices
// with that. A plugin that refuses one refuses the pod.
func (m *Manager) Allocate(ctx context.Context, devices podplan.Devices) (podplan.Devices, error) {
	out := podplan.Devices{}
	for _, container := range slices.Sorted(maps.Keys(devices)) {
		for _, g := range devices[container] {
			answer, err := m.allocate(ctx, g)
			if err != nil {
				return nil, err
			}
			if g.Needs, err = proto.Marshal(answer); err != nil {
				return nil, fmt.Errorf("what the device plugin of %s says: %w", g.Resource, err)
			}
			out[container] = append(out[container], g)
		}
	}
	return out, nil
}

func (m *Manager) allocate(ctx context.Context, g podplan.Grant) (*pluginapi.ContainerAllocateResponse, error) {
	p := m.pluginOf(g.Resource)
	if p == nil {
		return nil, fmt.Errorf("unknown Device Plugin %s", g.Resource)
	}
	ctx, cancel := context.WithTimeout(ctx, allocateTimeout)
	defer cancel()
	began := time.Now()
	answer, err := p.client.Allocate(ctx, &pluginapi.AllocateRequest{ContainerRequests: []*pluginapi.ContainerAllocateRequest{{DevicesIds: g.IDs}}})
	metrics.DeviceAllocation.WithLabelValues(g.Resource).Observe(time.Since(began).Seconds())
	if err != nil {
		return nil, err
	}
	if len(answer.GetContainerResponses()) != 1 {
		return nil, fmt.Errorf("no containers return in allocation response of %s", g.Resource)
	}
	return answer.GetContainerResponses()[0], nil
}

// Container returns what a container is to have for its devices, after the plugins that want it were told that it is
// about to be started.
func (m *Manager) Container(ctx context.Context, grants []podplan.Grant) (criconfig.Plugged, error) {
	var out criconfig.Plugged
	for _, g := range grants {
		var needs pluginapi.ContainerAllocateResponse
		if err := proto.Unmarshal(g.Needs, &needs); err != nil {
			return out, fmt.Errorf("what the device plugin of %s said is damaged: %w", g.Resource, err)
		}
		if err := m.prepare(ctx, g); err != nil {
			return out, err
		}
		plug(&out, &needs)
	}
	return out, nil
}

// prepare tells a plugin that a container is about to be started, if the plugin wants to know.
func (m *Manager) prepare(ctx context.Context, g podplan.Grant) error {
	m.mu.Lock()
	of := m.known[g.Resource]
	var p *plugin
	if of != nil {
		p = of.plugin
	}
	there := p != nil && of.since.IsZero()
	m.mu.Unlock()
	switch {
	case p == nil: // whether it wants to know is not known
		return fmt.Errorf("endpoint not found in cache for a registered resource: %s", g.Resource)
	case !p.options.GetPreStartRequired():
		return nil
	case !there:
		return fmt.Errorf("the device plugin of %s, which is to prepare the devices, has gone", g.Resource)
	}
	ctx, cancel := context.WithTimeout(ctx, pluginapi.KubeletPreStartContainerRPCTimeoutInSecs*time.Second)
	defer cancel()
	if _, err := p.client.PreStartContainer(ctx, &pluginapi.PreStartContainerRequest{DevicesIds: g.IDs}); err != nil {
		return fmt.Errorf("device plugin PreStartContainer rpc failed with err: %w", err)
	}
	return nil
}

// plug adds what one plugin says to what others have said, in the order of their names.
func plug(to *criconfig.Plugged, needs *pluginapi.ContainerAllocateResponse) {
	for _, name := range slices.Sorted(maps.Keys(needs.GetEnvs())) {
		to.Env = append(to.Env, criconfig.Env{Name: name, Value: needs.GetEnvs()[name]})
	}
	for _, d := range needs.GetMounts() {
		to.Mounts = append(to.Mounts, &runtimeapi.Mount{ContainerPath: d.GetContainerPath(), HostPath: d.GetHostPath(), Readonly: d.GetReadOnly()})
	}
	for _, d := range needs.GetDevices() {
		to.Devices = append(to.Devices, &runtimeapi.Device{ContainerPath: d.GetContainerPath(), HostPath: d.GetHostPath(), Permissions: d.GetPermissions()})
	}
	for name, value := range needs.GetAnnotations() {
		if to.Annotations == nil {
			to.Annotations = map[string]string{}
		}
		to.Annotations[name] = value
	}
	for _, d := range needs.GetCdiDevices() {
		to.CDI = append(to.CDI, d.GetName())
	}
}
