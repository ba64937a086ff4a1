package service

import (
	"context"
	"errors"
	"math/rand/v2"
	"strings"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/client-go/util/retry"
	utilnet "k8s.io/utils/net"

	"wherry.dev/internal/apiserver/registry"
)

const (
	// managedBy is the value of the label that shows which IPAddress objects are ours; upstream's too.
	managedBy = "ipallocator.k8s.io"
	// uidKey is an annotation of IPAddress objects: the UID of the service, which a parentRef does not
	// have. It tells a deleted service from one of the same name and address that was made after it.
	uidKey = "wherry.dev/service-uid"
)

var (
	errTaken = errors.New("provided IP is already allocated")
	errFull  = errors.New("range is full")

	ipAddresses = networkingv1.Resource("ipaddresses")
)

// owner is a service that has an address.
type owner struct{ namespace, name, uid string }

// ownerIn reads what ownerOf has made.
func ownerIn(s string) owner {
	namespace, rest, _ := strings.Cut(s, "/")
	name, uid, _ := strings.Cut(rest, "/")
	return owner{namespace, name, uid}
}

// ipAddress returns the object that says that a service has an address.
func ipAddress(ip string, o owner) *networkingv1.IPAddress {
	out := &networkingv1.IPAddress{ObjectMeta: metav1.ObjectMeta{
		Name: ip,
		Labels: map[string]string{
			networkingv1.LabelIPAddressFamily: string(familyOf(ip)),
			networkingv1.LabelManagedBy:       managedBy,
		},
		Annotations: map[string]string{uidKey: o.uid},
	}}
	out.Spec.ParentRef = &networkingv1.ParentReference{Resource: "services", Namespace: o.namespace, Name: o.name}
	return out
}

// refersTo reports whether an object of ours names the service.
func refersTo(a *networkingv1.IPAddress, o owner) bool {
	ref := a.Spec.ParentRef
	return a.Labels[networkingv1.LabelManagedBy] == managedBy && ref != nil && ref.Group == "" && ref.Resource == "services" &&
		ref.Namespace == o.namespace && ref.Name == o.name
}

// belongsTo reports whether an object of ours is this very service's. One that upstream has made does
// not say the UID.
func belongsTo(a *networkingv1.IPAddress, o owner) bool {
	uid, told := a.Annotations[uidKey]
	return refersTo(a, o) && (!told || uid == o.uid)
}

// claimAddress makes the object of an address: whoever makes it has the address. It returns errTaken if
// there is one. A dry run only looks.
//
// The object goes straight to storage, so that a service costs one write more, not one request more.
func (a *Allocator) claimAddress(ctx context.Context, ip string, o owner, dry bool) error {
	store := a.lookup.Store(ipAddresses)
	obj := ipAddress(ip, o)
	rest.FillObjectMetaSystemFields(obj)
	key, err := store.KeyFunc(ctx, ip)
	if err != nil {
		return err
	}
	err = store.Storage.Create(ctx, key, obj, store.NewFunc(), 0, dry)
	if storage.IsExist(err) {
		return errTaken
	}
	return err
}

// releaseAddress deletes the object of an address if it is this very service's.
func (a *Allocator) releaseAddress(ctx context.Context, ip string, o owner) error {
	return retry.RetryOnConflict(retry.DefaultRetry, func() error {
		obj, err := registry.GetLive[*networkingv1.IPAddress](ctx, a.lookup, ipAddresses, metav1.NamespaceNone, ip)
		if apierrors.IsNotFound(err) || err == nil && !belongsTo(obj, o) {
			return nil
		}
		if err != nil {
			return err
		}
		return a.deleteAddress(ctx, obj)
	})
}

// deleteAddress deletes an object if it is still as it was read.
func (a *Allocator) deleteAddress(ctx context.Context, obj *networkingv1.IPAddress) error {
	opts := &metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &obj.UID, ResourceVersion: &obj.ResourceVersion}}
	_, _, err := a.lookup.Store(ipAddresses).Delete(ctx, obj.Name, rest.ValidateAllObjectFunc, opts)
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// ip takes the wanted address of a configured family, or any free one if that is "". The claim is empty if nothing must be
// released when the service is not created after all.
func (a *Allocator) ip(ctx context.Context, ownedBy string, family corev1.IPFamily, wanted string, dry bool) (string, claim, error) {
	ip, err := wanted, error(nil)
	if wanted != "" {
		err = a.wantedAddress(ctx, family, wanted, ownerIn(ownedBy), dry)
	} else {
		ip, err = a.anyAddress(ctx, family, ownerIn(ownedBy), dry)
	}
	if errors.Is(err, errOwn) || err == nil && dry {
		return ip, claim{}, nil
	}
	if err != nil {
		return "", claim{}, err
	}
	return ip, claim{ipFolder + utilnet.ParseIPSloppy(ip).String(), ownedBy}, nil
}

// errOwn says that the service has the address already.
var errOwn = errors.New("the service has this address")

func (a *Allocator) wantedAddress(ctx context.Context, family corev1.IPFamily, wanted string, o owner, dry bool) error {
	if err := a.checkWanted(ctx, family, wanted); err != nil {
		return err
	}
	ip := utilnet.ParseIPSloppy(wanted).String()
	err := a.claimAddress(ctx, ip, o, dry)
	if !errors.Is(err, errTaken) {
		return err
	}
	obj, getErr := registry.GetLive[*networkingv1.IPAddress](ctx, a.lookup, ipAddresses, metav1.NamespaceNone, ip)
	if getErr == nil && belongsTo(obj, o) && obj.Annotations[uidKey] != "" {
		return errOwn
	}
	return err
}

// anyAddress takes a free address: a random one of the ranges' dynamic parts, and the first free one of
// any range when those that were picked are taken.
func (a *Allocator) anyAddress(ctx context.Context, family corev1.IPFamily, o owner, dry bool) (string, error) {
	found, err := a.ranges(ctx, family)
	if err != nil {
		return "", err
	}
	for _, r := range found {
		if ip, err := a.randomAddress(ctx, r, o, dry); !errors.Is(err, errFull) {
			return ip, err
		}
	}
	if found, err = a.rangesNow(ctx, family); err != nil {
		return "", err
	}
	list, err := registry.ListLive[*networkingv1.IPAddressList](ctx, a.lookup, ipAddresses, metav1.NamespaceNone, everything)
	if err != nil {
		return "", err
	}
	taken := make(map[string]bool, len(list.Items))
	for i := range list.Items {
		taken[list.Items[i].Name] = true
	}
	for _, r := range found {
		if ip, err := a.firstAddress(ctx, r, taken, o, dry); !errors.Is(err, errFull) {
			return ip, err
		}
	}
	return "", errFull
}

// randomAddress tries random addresses of a range's dynamic part. Those that the watch cache knows to be
// taken cost no request to etcd.
func (a *Allocator) randomAddress(ctx context.Context, r addressRange, o owner, dry bool) (string, error) {
	_, last := r.usable()
	from := r.dynamicFrom()
	if from > last {
		return "", errFull
	}
	for range tries {
		ip := r.at(from + rand.Int64N(last-from+1))
		if known, err := a.knownTaken(ctx, ip); known || err != nil {
			if err != nil {
				return "", err
			}
			continue
		}
		if err := a.claimAddress(ctx, ip, o, dry); !errors.Is(err, errTaken) {
			return ip, err
		}
	}
	return "", errFull
}

// knownTaken reports whether the watch cache has an object of the address.
func (a *Allocator) knownTaken(ctx context.Context, ip string) (bool, error) {
	store := a.lookup.Store(ipAddresses)
	key, err := store.KeyFunc(ctx, ip)
	if err != nil {
		return false, err
	}
	err = store.Storage.Get(ctx, key, storage.GetOptions{ResourceVersion: "0"}, store.NewFunc())
	if storage.IsNotFound(err) {
		return false, nil
	}
	return err == nil, err
}

// firstAddress takes the first free address of a range's dynamic part, else of the rest.
func (a *Allocator) firstAddress(ctx context.Context, r addressRange, taken map[string]bool, o owner, dry bool) (string, error) {
	first, last := r.usable()
	from := r.dynamicFrom()
	for _, part := range [][2]int64{{from, last}, {first, min(from-1, last)}} {
		for n := part[0]; n <= part[1]; n++ {
			ip := r.at(n)
			if taken[ip] {
				continue
			}
			if err := a.claimAddress(ctx, ip, o, dry); !errors.Is(err, errTaken) {
				return ip, err
			}
		}
	}
	return "", errFull
}
