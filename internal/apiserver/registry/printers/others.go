package printers

import (
	"slices"
	"strings"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"wherry.dev/internal/apiserver/registry"
)

// Leases is the table of leases.
var Leases = registry.Table[*coordinationv1.Lease]{
	Columns: []metav1.TableColumnDefinition{nameColumn, column("Holder", coordinationv1.LeaseSpec{}.SwaggerDoc()["holderIdentity"]), ageColumn},
	Cells: func(l *coordinationv1.Lease, now time.Time) []any {
		holder := ""
		if l.Spec.HolderIdentity != nil {
			holder = *l.Spec.HolderIdentity
		}
		return []any{l.Name, holder, age(l, now)}
	},
}

// RuntimeClasses is the table of runtime classes.
var RuntimeClasses = registry.Table[*nodev1.RuntimeClass]{
	Columns: []metav1.TableColumnDefinition{nameColumn, column("Handler", nodev1.RuntimeClass{}.SwaggerDoc()["handler"]), ageColumn},
	Cells:   func(c *nodev1.RuntimeClass, now time.Time) []any { return []any{c.Name, c.Handler, age(c, now)} },
}

// PriorityClasses is the table of priority classes.
var PriorityClasses = registry.Table[*schedulingv1.PriorityClass]{
	Columns: []metav1.TableColumnDefinition{
		nameColumn,
		registry.Column("Value", "integer", "", schedulingv1.PriorityClass{}.SwaggerDoc()["value"], false),
		registry.Column("Global-Default", "boolean", "", schedulingv1.PriorityClass{}.SwaggerDoc()["globalDefault"], false),
		ageColumn,
		column("PreemptionPolicy", schedulingv1.PriorityClass{}.SwaggerDoc()["preemptionPolicy"]),
	},
	Cells: func(c *schedulingv1.PriorityClass, now time.Time) []any {
		policy := ""
		if c.PreemptionPolicy != nil {
			policy = string(*c.PreemptionPolicy)
		}
		return []any{c.Name, int64(c.Value), c.GlobalDefault, age(c, now), policy}
	},
}

// accessModes are the short forms, in the order in which they are printed.
var accessModes = []struct {
	mode  corev1.PersistentVolumeAccessMode
	short string
}{
	{corev1.ReadWriteOnce, "RWO"}, {corev1.ReadOnlyMany, "ROX"}, {corev1.ReadWriteMany, "RWX"}, {corev1.ReadWriteOncePod, "RWOP"},
}

func modes(list []corev1.PersistentVolumeAccessMode) string {
	var out []string
	for _, m := range accessModes {
		if slices.Contains(list, m.mode) {
			out = append(out, m.short)
		}
	}
	return strings.Join(out, ",")
}

// PersistentVolumes is the table of persistent volumes.
var PersistentVolumes = registry.Table[*corev1.PersistentVolume]{
	Columns: []metav1.TableColumnDefinition{
		nameColumn,
		column("Capacity", corev1.PersistentVolumeSpec{}.SwaggerDoc()["capacity"]),
		column("Access Modes", corev1.PersistentVolumeSpec{}.SwaggerDoc()["accessModes"]),
		column("Reclaim Policy", corev1.PersistentVolumeSpec{}.SwaggerDoc()["persistentVolumeReclaimPolicy"]),
		column("Status", corev1.PersistentVolumeStatus{}.SwaggerDoc()["phase"]),
		column("Claim", corev1.PersistentVolumeSpec{}.SwaggerDoc()["claimRef"]),
		column("StorageClass", "StorageClass of the pv"),
		column("VolumeAttributesClass", "VolumeAttributesClass of the pv"),
		column("Reason", corev1.PersistentVolumeStatus{}.SwaggerDoc()["reason"]),
		ageColumn,
		wide("VolumeMode", corev1.PersistentVolumeSpec{}.SwaggerDoc()["volumeMode"]),
	},
	Cells: func(v *corev1.PersistentVolume, now time.Time) []any {
		claim := ""
		if r := v.Spec.ClaimRef; r != nil {
			claim = r.Namespace + "/" + r.Name
		}
		phase := string(v.Status.Phase)
		if v.DeletionTimestamp != nil {
			phase = "Terminating"
		}
		return []any{
			v.Name, v.Spec.Capacity.Storage().String(), modes(v.Spec.AccessModes), string(v.Spec.PersistentVolumeReclaimPolicy),
			phase, claim, v.Spec.StorageClassName, orUnset(v.Spec.VolumeAttributesClassName), v.Status.Reason, age(v, now), orUnset(v.Spec.VolumeMode),
		}
	},
}

// PersistentVolumeClaims is the table of persistent volume claims.
var PersistentVolumeClaims = registry.Table[*corev1.PersistentVolumeClaim]{
	Columns: []metav1.TableColumnDefinition{
		nameColumn,
		column("Status", corev1.PersistentVolumeClaimStatus{}.SwaggerDoc()["phase"]),
		column("Volume", corev1.PersistentVolumeClaimSpec{}.SwaggerDoc()["volumeName"]),
		column("Capacity", corev1.PersistentVolumeClaimStatus{}.SwaggerDoc()["capacity"]),
		column("Access Modes", corev1.PersistentVolumeClaimStatus{}.SwaggerDoc()["accessModes"]),
		column("StorageClass", "StorageClass of the pvc"),
		column("VolumeAttributesClass", "VolumeAttributesClass of the pvc"),
		ageColumn,
		wide("VolumeMode", corev1.PersistentVolumeClaimSpec{}.SwaggerDoc()["volumeMode"]),
	},
	Cells: func(c *corev1.PersistentVolumeClaim, now time.Time) []any {
		phase, capacity, access, class := string(c.Status.Phase), "", "", ""
		if c.DeletionTimestamp != nil {
			phase = "Terminating"
		}
		if c.Spec.VolumeName != "" {
			capacity, access = c.Status.Capacity.Storage().String(), modes(c.Status.AccessModes)
		}
		if c.Spec.StorageClassName != nil {
			class = *c.Spec.StorageClassName
		}
		return []any{
			c.Name, phase, c.Spec.VolumeName, capacity, access, class,
			orUnset(c.Spec.VolumeAttributesClassName), age(c, now), orUnset(c.Spec.VolumeMode),
		}
	},
}

var bindingColumns = []metav1.TableColumnDefinition{
	nameColumn,
	column("Role", rbacv1.RoleBinding{}.SwaggerDoc()["roleRef"]),
	ageColumn,
	wide("Users", "Users in the roleBinding"),
	wide("Groups", "Groups in the roleBinding"),
	wide("ServiceAccounts", "ServiceAccounts in the roleBinding"),
}

// RoleBindings is the table of role bindings.
var RoleBindings = registry.Table[*rbacv1.RoleBinding]{
	Columns: bindingColumns,
	Cells: func(b *rbacv1.RoleBinding, now time.Time) []any {
		return append([]any{b.Name, b.RoleRef.Kind + "/" + b.RoleRef.Name, age(b, now)}, subjects(b.Subjects)...)
	},
}

// ClusterRoleBindings is the table of cluster role bindings.
var ClusterRoleBindings = registry.Table[*rbacv1.ClusterRoleBinding]{
	Columns: bindingColumns,
	Cells: func(b *rbacv1.ClusterRoleBinding, now time.Time) []any {
		return append([]any{b.Name, b.RoleRef.Kind + "/" + b.RoleRef.Name, age(b, now)}, subjects(b.Subjects)...)
	},
}

func subjects(list []rbacv1.Subject) []any {
	var users, groups, accounts []string
	for _, s := range list {
		switch s.Kind {
		case rbacv1.ServiceAccountKind:
			accounts = append(accounts, s.Namespace+"/"+s.Name)
		case rbacv1.UserKind:
			users = append(users, s.Name)
		case rbacv1.GroupKind:
			groups = append(groups, s.Name)
		}
	}
	return []any{strings.Join(users, ", "), strings.Join(groups, ", "), strings.Join(accounts, ", ")}
}
