package scheduler

import (
	"context"
	"time"

	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"

	"wherry.dev/internal/scheduler/plugins/devices"
)

// taintRules are served since Kubernetes 1.37; a scheduler may also work for an older API server.
var taintRules = resourcev1.SchemeGroupVersion.WithResource("devicetaintrules")

// askAgain is after how long an API server that did not answer is asked again.
const askAgain = time.Second

// findTaintRules asks the API server whether it has DeviceTaintRules, if nobody has said so. It returns false if ctx ends
// before the API server answers.
func (s *Scheduler) findTaintRules(ctx context.Context) bool {
	if !s.askServed || !s.named(fwk.ResourceSlice) {
		return true
	}
	for {
		list, err := s.client.Discovery().ServerResourcesForGroupVersion(taintRules.GroupVersion().String())
		if err == nil || apierrors.IsNotFound(err) {
			for i := 0; list != nil && i < len(list.APIResources); i++ {
				if list.APIResources[i].Name == taintRules.Resource {
					s.tainting = s.shared.Informers.Resource().V1().DeviceTaintRules()
				}
			}
			return true
		}
		klog.FromContext(ctx).Info("Cannot ask the API server whether it has DeviceTaintRules, trying again", "err", err)
		select {
		case <-time.After(askAgain):
		case <-ctx.Done():
			return false
		}
	}
}

// watchTaintRules has the rules applied to what is known of devices. One that comes, changes or goes is, for those who wait, a
// change of the slices whose devices it taints.
func (s *Scheduler) watchTaintRules(ctx context.Context) (cache.DoneChecker, error) {
	var manager *devices.Manager
	for _, p := range s.profiles {
		if m, ok := p.KnownDevices().(*devices.Manager); ok {
			manager = m
		}
	}
	if manager == nil || s.tainting == nil {
		return nil, nil
	}
	manager.UseTaintRules(s.tainting.Lister())
	changed := func(old, obj any) {
		before, _ := old.(*resourcev1.DeviceTaintRule)
		now, _ := obj.(*resourcev1.DeviceTaintRule)
		for _, slices := range manager.TaintsOf(before, now) {
			s.move(ctx, time.Now(), fwk.ResourceSlice, fwk.Update, slices[0], slices[1])
		}
	}
	reg, err := s.tainting.Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: func(obj any) { changed(nil, obj) }, UpdateFunc: changed, DeleteFunc: func(obj any) { changed(unwrap(obj), nil) },
	})
	if err != nil {
		return nil, err
	}
	return reg.HasSyncedChecker(), nil
}
