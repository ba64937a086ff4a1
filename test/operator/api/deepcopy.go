package api

// What controller-gen makes of types.go, written by hand: keep it in step.

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// DeepCopyInto copies the receiver into out; neither may be nil.
func (in *Shop) DeepCopyInto(out *Shop) {
	*out = *in
	out.TypeMeta = in.TypeMeta
	in.ObjectMeta.DeepCopyInto(&out.ObjectMeta)
	in.Spec.DeepCopyInto(&out.Spec)
	in.Status.DeepCopyInto(&out.Status)
}

// DeepCopy copies the receiver into a new Shop.
func (in *Shop) DeepCopy() *Shop {
	if in == nil {
		return nil
	}
	out := new(Shop)
	in.DeepCopyInto(out)
	return out
}

// DeepCopyObject copies the receiver into a new runtime.Object.
func (in *Shop) DeepCopyObject() runtime.Object {
	if c := in.DeepCopy(); c != nil {
		return c
	}
	return nil
}

// DeepCopyInto copies the receiver into out; neither may be nil.
func (in *ShopList) DeepCopyInto(out *ShopList) {
	*out = *in
	out.TypeMeta = in.TypeMeta
	in.ListMeta.DeepCopyInto(&out.ListMeta)
	if in.Items != nil {
		in, out := &in.Items, &out.Items
		*out = make([]Shop, len(*in))
		for i := range *in {
			(*in)[i].DeepCopyInto(&(*out)[i])
		}
	}
}

// DeepCopy copies the receiver into a new ShopList.
func (in *ShopList) DeepCopy() *ShopList {
	if in == nil {
		return nil
	}
	out := new(ShopList)
	in.DeepCopyInto(out)
	return out
}

// DeepCopyObject copies the receiver into a new runtime.Object.
func (in *ShopList) DeepCopyObject() runtime.Object {
	if c := in.DeepCopy(); c != nil {
		return c
	}
	return nil
}

// DeepCopyInto copies the receiver into out; neither may be nil.
func (in *ShopSpec) DeepCopyInto(out *ShopSpec) {
	*out = *in
	if in.Replicas != nil {
		in, out := &in.Replicas, &out.Replicas
		*out = new(int32)
		**out = **in
	}
}

// DeepCopy copies the receiver into a new ShopSpec.
func (in *ShopSpec) DeepCopy() *ShopSpec {
	if in == nil {
		return nil
	}
	out := new(ShopSpec)
	in.DeepCopyInto(out)
	return out
}

// DeepCopyInto copies the receiver into out; neither may be nil.
func (in *ShopStatus) DeepCopyInto(out *ShopStatus) {
	*out = *in
	if in.Conditions != nil {
		in, out := &in.Conditions, &out.Conditions
		*out = make([]metav1.Condition, len(*in))
		for i := range *in {
			(*in)[i].DeepCopyInto(&(*out)[i])
		}
	}
}

// DeepCopy copies the receiver into a new ShopStatus.
func (in *ShopStatus) DeepCopy() *ShopStatus {
	if in == nil {
		return nil
	}
	out := new(ShopStatus)
	in.DeepCopyInto(out)
	return out
}
