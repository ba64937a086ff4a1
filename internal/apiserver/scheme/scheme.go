// Package scheme holds the API types that the server knows, and how they are encoded.
//
// Every kind is registered a second time as its group's internal version. The library converts each
// object between the version that a client speaks, an internal hub, and the version that is stored.
// With one Go type for all three, conversion only sets the TypeMeta.
//
// A kind that is served in several versions has the Go type of one of them as its hub: that of the
// first in Groups. The others need functions that convert to it and back (addAutoscalers). Defaults
// are applied on decoding, in the version that was sent, as upstream does.
package scheme

import (
	"fmt"
	"net/url"
	"reflect"
	"strings"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	batchv1 "k8s.io/api/batch/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	eventsv1 "k8s.io/api/events/v1"
	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	networkingv1 "k8s.io/api/networking/v1"
	nodev1 "k8s.io/api/node/v1"
	nodev1beta1 "k8s.io/api/node/v1beta1"
	policyv1 "k8s.io/api/policy/v1"
	policyv1beta1 "k8s.io/api/policy/v1beta1"
	rbacv1 "k8s.io/api/rbac/v1"
	rbacv1beta1 "k8s.io/api/rbac/v1beta1"
	resourcev1 "k8s.io/api/resource/v1"
	resourcev1beta2 "k8s.io/api/resource/v1beta2"
	schedulingv1 "k8s.io/api/scheduling/v1"
	schedulingv1beta1 "k8s.io/api/scheduling/v1beta1"
	storagev1 "k8s.io/api/storage/v1"
	storagev1beta1 "k8s.io/api/storage/v1beta1"
	storagemigrationv1 "k8s.io/api/storagemigration/v1"
	storagemigrationv1beta1 "k8s.io/api/storagemigration/v1beta1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/conversion"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	metricsv1beta1 "k8s.io/metrics/pkg/apis/metrics/v1beta1"
)

// Groups are the group versions that the server knows, in the order of discovery; of several
// versions of a group, the preferred one comes first.
var Groups = []schema.GroupVersion{
	corev1.SchemeGroupVersion,
	admissionv1.SchemeGroupVersion,
	appsv1.SchemeGroupVersion,
	authenticationv1.SchemeGroupVersion,
	authorizationv1.SchemeGroupVersion,
	autoscalingv2.SchemeGroupVersion,
	autoscalingv1.SchemeGroupVersion,
	batchv1.SchemeGroupVersion,
	certificatesv1.SchemeGroupVersion,
	coordinationv1.SchemeGroupVersion,
	discoveryv1.SchemeGroupVersion,
	eventsv1.SchemeGroupVersion,
	flowcontrolv1.SchemeGroupVersion,
	metricsv1beta1.SchemeGroupVersion,
	networkingv1.SchemeGroupVersion,
	nodev1.SchemeGroupVersion,
	policyv1.SchemeGroupVersion,
	rbacv1.SchemeGroupVersion,
	resourcev1.SchemeGroupVersion,
	schedulingv1.SchemeGroupVersion,
	schedulingv1beta1.SchemeGroupVersion,
	storagev1.SchemeGroupVersion,
	storagemigrationv1.SchemeGroupVersion,
}

// New returns a scheme with all Groups. The caller adds defaulting functions before it creates
// codecs.
func New() *runtime.Scheme {
	s := runtime.NewScheme()
	builder := runtime.NewSchemeBuilder(
		corev1.AddToScheme, admissionv1.AddToScheme, appsv1.AddToScheme, authenticationv1.AddToScheme, authorizationv1.AddToScheme,
		autoscalingv1.AddToScheme, autoscalingv2.AddToScheme, batchv1.AddToScheme, certificatesv1.AddToScheme,
		coordinationv1.AddToScheme, discoveryv1.AddToScheme, eventsv1.AddToScheme, flowcontrolv1.AddToScheme, networkingv1.AddToScheme,
		nodev1.AddToScheme, policyv1.AddToScheme, rbacv1.AddToScheme, resourcev1.AddToScheme, schedulingv1.AddToScheme,
		storagev1.AddToScheme, storagemigrationv1.AddToScheme, metricsv1beta1.AddToScheme,
		addEvents, addAutoscalers, addPodGroups, addOptionConversions,
	)
	utilruntime.Must(builder.AddToScheme(s))
	versions := map[string][]schema.GroupVersion{}
	for _, gv := range Groups {
		addHub(s, gv)
		addIdentity(s, gv)
		versions[gv.Group] = append(versions[gv.Group], gv)
		utilruntime.Must(s.SetVersionPriority(versions[gv.Group]...))
	}
	for _, of := range stored {
		addStored(s, of.former, of.now)
	}
	s.AddKnownTypeWithName(policyv1beta1.SchemeGroupVersion.WithKind("Eviction"), &policyv1.Eviction{}) // pods/eviction takes it
	return s
}

// stored are versions that are read from storage and not served: upstream stores in them, or has done so. In protobuf
// they are the same as those which stand for them here. (policy/v1beta1 is not among them, because an empty selector of
// a disruption budget means nothing there, and everything in v1.)
var stored = []struct{ former, now schema.GroupVersion }{
	{resourcev1beta2.SchemeGroupVersion, resourcev1.SchemeGroupVersion},                 // DeviceTaintRules in 1.37
	{storagemigrationv1beta1.SchemeGroupVersion, storagemigrationv1.SchemeGroupVersion}, // in 1.37
	{rbacv1beta1.SchemeGroupVersion, rbacv1.SchemeGroupVersion},
	{storagev1beta1.SchemeGroupVersion, storagev1.SchemeGroupVersion},
	{nodev1beta1.SchemeGroupVersion, nodev1.SchemeGroupVersion},
}

// addStored has the kinds of one version read as those of another, which are the same.
func addStored(s *runtime.Scheme, former, now schema.GroupVersion) {
	for kind, typ := range s.KnownTypes(now) {
		if obj, ok := reflect.TypeAssert[runtime.Object](reflect.New(typ)); ok && !strings.HasPrefix(typ.PkgPath(), "k8s.io/apimachinery/") {
			s.AddKnownTypeWithName(former.WithKind(kind), obj)
		}
	}
}

// addPodGroups adds what is new in v1beta1 of scheduling.k8s.io: its priority classes are those of v1, and no longer served.
func addPodGroups(s *runtime.Scheme) error {
	gv := schedulingv1beta1.SchemeGroupVersion
	s.AddKnownTypes(gv, &schedulingv1beta1.Workload{}, &schedulingv1beta1.WorkloadList{}, &schedulingv1beta1.PodGroup{}, &schedulingv1beta1.PodGroupList{})
	metav1.AddToGroupVersion(s, gv)
	return nil
}

// Hub returns the internal version of a group.
func Hub(group string) schema.GroupVersion {
	return schema.GroupVersion{Group: group, Version: runtime.APIVersionInternal}
}

// addIdentity registers the conversion of each type of gv to itself, in which webhooks and policies get
// objects: the library does not know that the hub is one of the versions. The two share what they point
// to, as those of upstream's conversions do; a TypeMeta is the caller's.
func addIdentity(s *runtime.Scheme, gv schema.GroupVersion) {
	for _, typ := range s.KnownTypes(gv) {
		obj, ok := reflect.TypeAssert[runtime.Object](reflect.New(typ))
		if !ok || strings.HasPrefix(typ.PkgPath(), "k8s.io/apimachinery/") {
			continue
		}
		utilruntime.Must(s.AddConversionFunc(obj, obj, func(a, b any, _ conversion.Scope) error {
			kind := b.(runtime.Object).GetObjectKind()
			gvk := kind.GroupVersionKind()
			reflect.ValueOf(b).Elem().Set(reflect.ValueOf(a).Elem())
			kind.SetGroupVersionKind(gvk)
			return nil
		}))
	}
}

// addHub registers the kinds of gv as the group's internal version, without those that every group
// shares, and those that have a hub already.
func addHub(s *runtime.Scheme, gv schema.GroupVersion) {
	shared := map[string]bool{}
	metaOnly := runtime.NewScheme()
	metav1.AddToGroupVersion(metaOnly, gv)
	for kind := range metaOnly.KnownTypes(gv) {
		shared[kind] = true
	}
	for kind, typ := range s.KnownTypes(gv) {
		hub := Hub(gv.Group).WithKind(kind)
		if shared[kind] || s.Recognizes(hub) || strings.HasPrefix(typ.PkgPath(), "k8s.io/apimachinery/") {
			continue
		}
		obj, err := s.New(gv.WithKind(kind))
		utilruntime.Must(err)
		s.AddKnownTypeWithName(hub, obj)
	}
}

// StorageCodec returns a codec that writes objects of gv in protobuf, and reads every encoding.
func StorageCodec(s *runtime.Scheme, codecs serializer.CodecFactory, gv schema.GroupVersion) (runtime.Codec, runtime.GroupVersioner, error) {
	info, ok := runtime.SerializerInfoForMediaType(codecs.SupportedMediaTypes(), runtime.ContentTypeProtobuf)
	if !ok {
		return nil, nil, fmt.Errorf("no protobuf serializer for %s", gv)
	}
	return codecs.CodecForVersions(info.Serializer, codecs.UniversalDeserializer(), gv, Hub(gv.Group)), gv, nil
}

// addOptionConversions registers how the options of connections and logs are read from a query.
func addOptionConversions(s *runtime.Scheme) error {
	convert := func(in any, fill func(q query)) error {
		values, ok := in.(*url.Values)
		if !ok {
			return fmt.Errorf("cannot read options from %T", in)
		}
		q := query{values: *values, err: new(error)}
		fill(q)
		return *q.err
	}
	add := func(out runtime.Object, fill func(q query, out any)) error {
		return s.AddConversionFunc((*url.Values)(nil), out, func(a, b any, _ conversion.Scope) error {
			return convert(a, func(q query) { fill(q, b) })
		})
	}
	for _, c := range optionConversions {
		if err := add(c.out, c.fill); err != nil {
			return err
		}
	}
	return nil
}
