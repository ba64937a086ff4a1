package bootstrap

import (
	"context"
	"fmt"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/retry"
	"k8s.io/component-helpers/auth/rbac/reconciliation"

	"wherry.dev/internal/apiserver/auth/policy"
)

// ensurePolicy creates the RBAC objects that are missing, and restores in existing ones what they
// have lost: rules, subjects, the role of a binding. What somebody added stays. An object with the
// annotation rbac.authorization.kubernetes.io/autoupdate: "false" stays as it is.
func (o *Objects) ensurePolicy(ctx context.Context) error {
	all := []policy.Policy{policy.Default()}
	if o.cfg.PodGroups {
		all = append(all, policy.PodGroups())
	}
	if o.cfg.NodesJoin {
		all = append(all, policy.Joining())
	}
	for i := range all {
		if err := o.ensure(ctx, &all[i]); err != nil {
			return err
		}
	}
	return nil
}

func (o *Objects) ensure(ctx context.Context, p *policy.Policy) error {
	api := o.cfg.Client.RbacV1()
	for _, want := range p.ClusterRoles {
		c := &kept[*rbacv1.ClusterRole, reconciliation.RuleOwner]{ctx: ctx, client: api.ClusterRoles(), wrap: ownerOfClusterRole}
		if err := ensureRole(ownerOfClusterRole(&want), c); err != nil {
			return err
		}
	}
	for _, want := range p.ClusterRoleBindings {
		c := &kept[*rbacv1.ClusterRoleBinding, reconciliation.RoleBinding]{ctx: ctx, client: api.ClusterRoleBindings(), wrap: ofClusterRoleBinding}
		if err := ensureBinding(ofClusterRoleBinding(&want), c); err != nil {
			return err
		}
	}
	for _, want := range p.Roles {
		c := &kept[*rbacv1.Role, reconciliation.RuleOwner]{ctx: ctx, client: api.Roles(want.Namespace), wrap: ownerOfRole}
		if err := ensureRole(ownerOfRole(&want), c); err != nil {
			return err
		}
	}
	for _, want := range p.RoleBindings {
		c := &kept[*rbacv1.RoleBinding, reconciliation.RoleBinding]{ctx: ctx, client: api.RoleBindings(want.Namespace), wrap: ofRoleBinding}
		if err := ensureBinding(ofRoleBinding(&want), c); err != nil {
			return err
		}
	}
	return nil
}

func ownerOfClusterRole(o *rbacv1.ClusterRole) reconciliation.RuleOwner {
	return reconciliation.ClusterRoleRuleOwner{ClusterRole: o}
}

func ownerOfRole(o *rbacv1.Role) reconciliation.RuleOwner {
	return reconciliation.RoleRuleOwner{Role: o}
}

func ofClusterRoleBinding(o *rbacv1.ClusterRoleBinding) reconciliation.RoleBinding {
	return reconciliation.ClusterRoleBindingAdapter{ClusterRoleBinding: o}
}

func ofRoleBinding(o *rbacv1.RoleBinding) reconciliation.RoleBinding {
	return reconciliation.RoleBindingAdapter{RoleBinding: o}
}

func ensureRole(role reconciliation.RuleOwner, client reconciliation.RuleOwnerModifier) error {
	err := retry.RetryOnConflict(retry.DefaultRetry, func() error {
		_, err := (&reconciliation.ReconcileRoleOptions{Role: role, Client: client, Confirm: true}).Run()
		return err
	})
	if err != nil {
		return fmt.Errorf("%T %s: %w", role.GetObject(), role.GetName(), err)
	}
	return nil
}

func ensureBinding(binding reconciliation.RoleBinding, client reconciliation.RoleBindingModifier) error {
	err := retry.RetryOnConflict(retry.DefaultRetry, func() error {
		_, err := (&reconciliation.ReconcileRoleBindingOptions{RoleBinding: binding, Client: client, Confirm: true}).Run()
		return err
	})
	if err != nil {
		return fmt.Errorf("%T %s: %w", binding.GetObject(), binding.GetName(), err)
	}
	return nil
}

// keeper is the part of a typed client that kept needs.
type keeper[T any] interface {
	getCreator[T]
	Update(ctx context.Context, obj T, opts metav1.UpdateOptions) (T, error)
	Delete(ctx context.Context, name string, opts metav1.DeleteOptions) error
}

// kept adapts a client of one kind to the interfaces of the reconciliation. It reads from the watch
// cache or, after a failed write, from storage. It serves one object, during one call.
type kept[T runtime.Object, W interface{ GetObject() runtime.Object }] struct {
	ctx    context.Context
	client keeper[T]
	wrap   func(T) W
	live   bool
}

// Get implements the reconciliation's interface.
func (k *kept[T, W]) Get(_, name string) (W, error) {
	version := "0"
	if k.live {
		version = ""
	}
	return k.wrapped(k.client.Get(k.ctx, name, metav1.GetOptions{ResourceVersion: version}))
}

// Create implements the reconciliation's interface.
func (k *kept[T, W]) Create(in W) (W, error) {
	out, err := k.client.Create(k.ctx, in.GetObject().(T), metav1.CreateOptions{})
	k.live = err != nil
	return k.wrapped(out, err)
}

// Update implements the reconciliation's interface.
func (k *kept[T, W]) Update(in W) (W, error) {
	out, err := k.client.Update(k.ctx, in.GetObject().(T), metav1.UpdateOptions{})
	k.live = err != nil
	return k.wrapped(out, err)
}

// Delete implements the reconciliation's interface, which needs it because a binding's role cannot
// be changed.
func (k *kept[T, W]) Delete(_, name string, uid types.UID) error {
	err := k.client.Delete(k.ctx, name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &uid}})
	k.live = err != nil
	return err
}

func (k *kept[T, W]) wrapped(obj T, err error) (W, error) {
	if err != nil {
		var none W
		return none, err
	}
	return k.wrap(obj), nil
}
