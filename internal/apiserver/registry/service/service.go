package service

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation/field"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/util/dryrun"
	"k8s.io/klog/v2"
	utilnet "k8s.io/utils/net"
	"k8s.io/utils/ptr"
)

// Customize makes a store of services allocate.
func (a *Allocator) Customize(store *genericregistry.Store) {
	store.BeginCreate = a.beginCreate
	store.BeginUpdate = a.beginUpdate
	store.AfterDelete = a.afterDelete
}

// ownerOf returns a name that identifies this very service.
func ownerOf(s *corev1.Service) string {
	return s.Namespace + "/" + s.Name + "/" + string(s.UID)
}

func (a *Allocator) beginCreate(ctx context.Context, obj runtime.Object, opts *metav1.CreateOptions) (genericregistry.FinishFunc, error) {
	s := obj.(*corev1.Service)
	attemptsIn(ctx).next()
	if s.Spec.ClusterIP != "" && len(s.Spec.ClusterIPs) == 0 {
		s.Spec.ClusterIPs = []string{s.Spec.ClusterIP} // from a client that knows only the older field
	}
	return a.allocate(ctx, s, nil, dryrun.IsDryRun(opts.DryRun))
}

func (a *Allocator) beginUpdate(ctx context.Context, obj, oldObj runtime.Object, opts *metav1.UpdateOptions) (genericregistry.FinishFunc, error) {
	s, old := obj.(*corev1.Service), oldObj.(*corev1.Service)
	attemptsIn(ctx).next()
	if s.UID != "" && s.UID != old.UID {
		return func(context.Context, bool) {}, nil // it is refused next, and gets nothing
	}
	s.UID, s.Namespace = old.UID, old.Namespace
	Carry(s, old)
	dry := dryrun.IsDryRun(opts.DryRun)
	finish, err := a.allocate(ctx, s, old, dry)
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context, success bool) {
		finish(ctx, success)
		if success && !dry {
			a.giveUp(ctx, leftOver(s, old))
		}
	}, nil
}

func (a *Allocator) afterDelete(obj runtime.Object, opts *metav1.DeleteOptions) {
	if dryrun.IsDryRun(opts.DryRun) {
		return
	}
	s := obj.(*corev1.Service)
	a.release(a.ctx, claimsOf(s))
}

func (a *Allocator) release(ctx context.Context, claims []claim) {
	for _, c := range claims {
		if c.key == "" {
			continue
		}
		if err := a.releaseOne(context.WithoutCancel(ctx), c); err != nil {
			klog.FromContext(ctx).Error(err, "Cannot release an address or port of a service; repair does it later", "key", c.key)
		}
	}
}

// giveUp releases what the service has no more, when that is written.
func (a *Allocator) giveUp(ctx context.Context, claims []claim) {
	if t := attemptsIn(ctx); t != nil {
		t.given = claims
		return
	}
	a.release(ctx, claims)
}

func (a *Allocator) releaseOne(ctx context.Context, c claim) error {
	if ip, ok := strings.CutPrefix(c.key, ipFolder); ok {
		return a.releaseAddress(ctx, ip, ownerIn(c.owner))
	}
	return a.claims.Release(ctx, c.key, c.owner)
}

// claimsOf returns everything that a service holds.
func claimsOf(s *corev1.Service) []claim {
	owner := ownerOf(s)
	var out []claim
	for _, ip := range s.Spec.ClusterIPs {
		if parsed := utilnet.ParseIPSloppy(ip); parsed != nil {
			out = append(out, claim{ipFolder + parsed.String(), owner})
		}
	}
	for _, p := range s.Spec.Ports {
		if p.NodePort != 0 {
			out = append(out, claim{portFolder + strconv.Itoa(int(p.NodePort)), owner})
		}
	}
	if n := s.Spec.HealthCheckNodePort; n != 0 {
		out = append(out, claim{portFolder + strconv.Itoa(int(n)), owner})
	}
	return out
}

// leftOver returns what old held and s does not.
func leftOver(s, old *corev1.Service) []claim {
	have := claimsOf(s)
	return slices.DeleteFunc(claimsOf(old), func(c claim) bool { return slices.Contains(have, c) })
}

func needsIP(s *corev1.Service) bool { return s.Spec.Type != corev1.ServiceTypeExternalName }

func needsNodePort(s *corev1.Service) bool {
	switch s.Spec.Type {
	case corev1.ServiceTypeNodePort:
		return true
	case corev1.ServiceTypeLoadBalancer:
		return s.Spec.AllocateLoadBalancerNodePorts == nil || *s.Spec.AllocateLoadBalancerNodePorts
	}
	return false
}

// allocate fills in what the service leaves open. The returned function releases everything again
// if the request failed or was a dry run.
func (a *Allocator) allocate(ctx context.Context, s, old *corev1.Service, dry bool) (genericregistry.FinishFunc, error) {
	var taken []claim
	undo := func(ctx context.Context, success bool) {
		switch t := attemptsIn(ctx); {
		case dry, !success && (t == nil || !t.writing):
			a.release(ctx, taken)
		case t != nil:
			t.taken = taken // what becomes of it, the request's outcome says
		}
	}
	invalid := func(errs field.ErrorList) error {
		return apierrors.NewInvalid(corev1.SchemeGroupVersion.WithKind("Service").GroupKind(), s.Name, errs)
	}
	if errs := setFamilies(s, old, a.Families()); len(errs) > 0 {
		return nil, invalid(errs)
	}
	err := a.allocateIPs(ctx, s, old, &taken, dry)
	if err == nil && (old == nil || !sameNodePorts(s, old)) {
		err = a.allocatePorts(ctx, s, &taken)
	}
	if err != nil {
		undo(ctx, false)
		if mistake, ok := errors.AsType[*field.Error](err); ok {
			err = invalid(field.ErrorList{mistake})
		}
		return nil, err
	}
	return undo, nil
}

// mistake returns what is wrong with a field, or err as it is if storage has failed: the client may try again then.
func mistake(path *field.Path, value any, detail string, err error) error {
	if status := apierrors.APIStatus(nil); errors.As(err, &status) && status.Status().Code >= http.StatusInternalServerError {
		return err
	}
	return field.Invalid(path, value, detail)
}

func sameNodePorts(s, old *corev1.Service) bool {
	return needsNodePort(s) == needsNodePort(old) && apiequality.Semantic.DeepEqual(s.Spec.Ports, old.Spec.Ports) &&
		s.Spec.HealthCheckNodePort == old.Spec.HealthCheckNodePort && s.Spec.ExternalTrafficPolicy == old.Spec.ExternalTrafficPolicy
}

// allocateIPs gives the service an address of each of its families. Those that it had stay: an update adds
// one of the second family at most.
func (a *Allocator) allocateIPs(ctx context.Context, s, old *corev1.Service, taken *[]claim, dry bool) error {
	had := 0
	if old != nil && needsIP(old) {
		had = len(old.Spec.ClusterIPs)
	}
	switch {
	case !needsIP(s) || had > 0 && headless(old):
		return nil
	case headless(s):
		s.Spec.ClusterIPs = []string{corev1.ClusterIPNone}
		return nil
	}
	ips := slices.Clone(s.Spec.ClusterIPs)
	for i := had; i < len(s.Spec.IPFamilies); i++ {
		if i == len(ips) {
			ips = append(ips, "")
		}
		wanted := ips[i]
		ip, c, err := a.ip(ctx, ownerOf(s), s.Spec.IPFamilies[i], wanted, dry)
		if err != nil {
			detail := fmt.Sprintf("failed to allocate IP: %v", err)
			if wanted != "" {
				detail = fmt.Sprintf("failed to allocate IP %v: %v", wanted, err)
			}
			return mistake(field.NewPath("spec", "clusterIPs"), s.Spec.ClusterIPs, detail, err)
		}
		*taken = append(*taken, c)
		ips[i] = ip
	}
	s.Spec.ClusterIPs = ips
	if len(ips) > 0 {
		s.Spec.ClusterIP = ips[0]
	}
	return nil
}

func (a *Allocator) allocatePorts(ctx context.Context, s *corev1.Service, taken *[]claim) error {
	owner := ownerOf(s)
	if needsNodePort(s) {
		// Ports of different protocols may have the same number.
		for i := range s.Spec.Ports {
			p := &s.Spec.Ports[i]
			n, c, err := a.port(ctx, owner, p.NodePort)
			if err != nil {
				return mistake(field.NewPath("spec", "ports").Index(i).Child("nodePort"), p.NodePort, err.Error(), err)
			}
			*taken = append(*taken, c)
			p.NodePort = n
		}
	}
	local := s.Spec.Type == corev1.ServiceTypeLoadBalancer && s.Spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal
	if local {
		n, c, err := a.port(ctx, owner, s.Spec.HealthCheckNodePort)
		if err != nil {
			return mistake(field.NewPath("spec", "healthCheckNodePort"), s.Spec.HealthCheckNodePort, err.Error(), err)
		}
		*taken = append(*taken, c)
		s.Spec.HealthCheckNodePort = n
	}
	return nil
}

// Carry copies what old was given into an update that omits it, and drops what the service's new
// type does not need.
func Carry(s, old *corev1.Service) {
	if needsIP(s) && needsIP(old) {
		carryIPs(&s.Spec, &old.Spec)
	}
	if needsNodePort(s) && needsNodePort(old) {
		carryPorts(s, old)
	}
	if s.Spec.Type == corev1.ServiceTypeLoadBalancer && old.Spec.Type == corev1.ServiceTypeLoadBalancer && s.Spec.HealthCheckNodePort == 0 {
		s.Spec.HealthCheckNodePort = old.Spec.HealthCheckNodePort
	}
	dropUnused(s, old)
}

// carryIPs carries the addresses. A client may know only the older of the two fields.
func carryIPs(spec, old *corev1.ServiceSpec) {
	if spec.ClusterIP == "" {
		spec.ClusterIP = old.ClusterIP
	}
	switch same := spec.ClusterIP == old.ClusterIP; {
	case same && len(spec.ClusterIPs) == 0:
		spec.ClusterIPs = slices.Clone(old.ClusterIPs)
	case !same && (len(spec.ClusterIPs) == 0 || slices.Equal(spec.ClusterIPs, old.ClusterIPs)):
		spec.ClusterIPs = []string{spec.ClusterIP}
	}
}

func carryPorts(s, old *corev1.Service) {
	used := map[int32]bool{}
	for _, p := range s.Spec.Ports {
		used[p.NodePort] = p.NodePort != 0
	}
	given := map[string]int32{}
	key := func(p corev1.ServicePort) string { return string(p.Protocol) + "/" + strconv.Itoa(int(p.Port)) }
	for _, p := range old.Spec.Ports {
		given[key(p)] = p.NodePort
	}
	for i := range s.Spec.Ports {
		p := &s.Spec.Ports[i]
		if n := given[key(*p)]; p.NodePort == 0 && n != 0 && !used[n] {
			p.NodePort = n
		}
	}
}

// dropUnused removes values that the client did not touch and that make no sense for the new type.
func dropUnused(s, old *corev1.Service) {
	if needsIP(old) && !needsIP(s) {
		dropAddresses(&s.Spec, &old.Spec)
	}
	if needsNodePort(old) && !needsNodePort(s) && nodePorts(old).IsSuperset(nodePorts(s)) {
		s.Spec.Ports = slices.Clone(s.Spec.Ports)
		for i := range s.Spec.Ports {
			s.Spec.Ports[i].NodePort = 0
		}
	}
	external := func(s *corev1.Service) bool {
		return s.Spec.Type == corev1.ServiceTypeNodePort || s.Spec.Type == corev1.ServiceTypeLoadBalancer || len(s.Spec.ExternalIPs) > 0
	}
	if external(old) && !external(s) && s.Spec.ExternalTrafficPolicy == old.Spec.ExternalTrafficPolicy {
		s.Spec.ExternalTrafficPolicy = ""
	}
	local := func(s *corev1.Service) bool {
		return s.Spec.Type == corev1.ServiceTypeLoadBalancer && s.Spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal
	}
	if local(old) && !local(s) && s.Spec.HealthCheckNodePort == old.Spec.HealthCheckNodePort {
		s.Spec.HealthCheckNodePort = 0
	}
	if old.Spec.Type == corev1.ServiceTypeLoadBalancer && s.Spec.Type != corev1.ServiceTypeLoadBalancer {
		if ptr.Equal(s.Spec.AllocateLoadBalancerNodePorts, old.Spec.AllocateLoadBalancerNodePorts) {
			s.Spec.AllocateLoadBalancerNodePorts = nil
		}
		if ptr.Equal(s.Spec.LoadBalancerClass, old.Spec.LoadBalancerClass) {
			s.Spec.LoadBalancerClass = nil
		}
		s.Status.LoadBalancer = corev1.LoadBalancerStatus{}
	}
}

// nodePorts returns the node ports of a service.
func nodePorts(s *corev1.Service) sets.Set[int32] {
	out := sets.New[int32]()
	for _, p := range s.Spec.Ports {
		if p.NodePort != 0 {
			out.Insert(p.NodePort)
		}
	}
	return out
}

// dropAddresses removes what only services with addresses have.
func dropAddresses(spec, old *corev1.ServiceSpec) {
	if spec.ClusterIP == old.ClusterIP && (len(spec.ClusterIPs) == 0 || slices.Equal(spec.ClusterIPs, old.ClusterIPs)) {
		spec.ClusterIP, spec.ClusterIPs = "", nil
	}
	if slices.Equal(spec.IPFamilies, old.IPFamilies) {
		spec.IPFamilies = nil
	}
	if ptr.Equal(spec.IPFamilyPolicy, old.IPFamilyPolicy) {
		spec.IPFamilyPolicy = nil
	}
}
