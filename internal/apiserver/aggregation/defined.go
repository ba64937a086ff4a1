package aggregation

import (
	"context"
	"slices"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apiextensionsinformers "k8s.io/apiextensions-apiserver/pkg/client/informers/externalversions/apiextensions/v1"
	apiextensionslisters "k8s.io/apiextensions-apiserver/pkg/client/listers/apiextensions/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/client-go/tools/cache"
	"k8s.io/kube-aggregator/pkg/controllers/autoregister"
)

// defined keeps an APIService for each version of a group that a CustomResourceDefinition defines.
type defined struct {
	definitions apiextensionslisters.CustomResourceDefinitionLister
	auto        autoregister.AutoAPIServiceRegistration
	synced      cache.DoneChecker
}

func newDefined(informer apiextensionsinformers.CustomResourceDefinitionInformer, auto autoregister.AutoAPIServiceRegistration) (*defined, error) {
	d := &defined{definitions: informer.Lister(), auto: auto}
	look := func(o any) {
		if gone, ok := o.(cache.DeletedFinalStateUnknown); ok {
			o = gone.Obj
		}
		if crd, ok := o.(*apiextensionsv1.CustomResourceDefinition); ok {
			d.look(crd)
		}
	}
	reg, err := informer.Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    look,
		UpdateFunc: func(old, now any) { look(old); look(now) },
		DeleteFunc: look,
	})
	if err != nil {
		return nil, err
	}
	d.synced = reg.HasSyncedChecker()
	return d, nil
}

// await returns once the APIServices of all definitions are known. It fails if ctx ends before.
func (d *defined) await(ctx context.Context) error {
	if !cache.WaitFor(ctx, "", d.synced) {
		return context.Cause(ctx)
	}
	return nil
}

// look registers the versions that a definition names, and lets those go that nobody serves any more.
func (d *defined) look(crd *apiextensionsv1.CustomResourceDefinition) {
	all, err := d.definitions.List(labels.Everything())
	if err != nil {
		utilruntime.HandleError(err) // impossible: it reads memory
		return
	}
	for _, v := range crd.Spec.Versions {
		gv := schema.GroupVersion{Group: crd.Spec.Group, Version: v.Name}
		if _, ours := priorities[gv]; ours {
			continue
		}
		service := apiService(gv, definedPriority)
		if slices.ContainsFunc(all, func(c *apiextensionsv1.CustomResourceDefinition) bool { return serves(c, gv) }) {
			d.auto.AddAPIServiceToSync(service)
			continue
		}
		d.auto.RemoveAPIServiceToSync(service.Name)
	}
}

func serves(crd *apiextensionsv1.CustomResourceDefinition, gv schema.GroupVersion) bool {
	return crd.Spec.Group == gv.Group && slices.ContainsFunc(crd.Spec.Versions, func(v apiextensionsv1.CustomResourceDefinitionVersion) bool {
		return v.Name == gv.Version && v.Served
	})
}
