package storageversionmigrator

import (
	"context"
	"encoding/json"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
)

const (
	manager  = "storage-version-migrator-controller"
	pageSize = 500
)

// object is one that is to be rewritten.
type object struct {
	types.NamespacedName
	uid     types.UID
	version string
}

// rewrite has the objects written that have not been since the migration began. An error that wraps no
// failure says that some may be left.
func (c *Controller) rewrite(ctx context.Context, m *migration, what target) error {
	objects, err := c.list(ctx, m, what)
	if err != nil {
		return err
	}
	var changed error
	for _, o := range objects {
		err := c.touch(ctx, what, o)
		switch {
		case err == nil, absent(err):
		case apierrors.IsConflict(err):
			// It was written, or it is another object of the name: a list of now tells, by its version.
			changed = err
		default:
			return refused(fmt.Sprintf("write %s %s", what.resource.Resource, o.NamespacedName), err)
		}
	}
	return changed
}

// list returns the objects that are not newer than the migration. All pages are read before anything is
// written: a list that takes long expires.
func (c *Controller) list(ctx context.Context, m *migration, what target) ([]object, error) {
	var out []object
	for opts := (metav1.ListOptions{Limit: pageSize}); ; {
		page, err := c.metadata.Resource(what.resource).List(ctx, opts)
		if err != nil {
			return nil, refused("list "+key(m), err)
		}
		// An API server that was restored, or is behind, would hide objects.
		if old, err := newer(m.Status.ResourceVersion, page.ResourceVersion); err != nil {
			return nil, failure{fmt.Errorf("list %s: %w", key(m), err)}
		} else if old {
			return nil, fmt.Errorf("list %s: version %s is older than the migration, which began at %s",
				key(m), page.ResourceVersion, m.Status.ResourceVersion)
		}
		for i := range page.Items {
			o := &page.Items[i]
			written, err := newer(o.ResourceVersion, m.Status.ResourceVersion)
			if err != nil {
				return nil, failure{fmt.Errorf("%s %s/%s: %w", key(m), o.Namespace, o.Name, err)}
			}
			if !written {
				out = append(out, object{types.NamespacedName{Namespace: o.Namespace, Name: o.Name}, o.UID, o.ResourceVersion})
			}
		}
		if opts.Continue = page.Continue; opts.Continue == "" {
			return out, nil
		}
	}
}

func newer(a, b string) (bool, error) {
	order, err := resourceversion.CompareResourceVersion(a, b)
	return order > 0, err
}

// touch has an object stored again, if what is stored is not what would be. To apply to an object that is
// gone would create it: with a UID, that is a conflict.
func (c *Controller) touch(ctx context.Context, what target, o object) error {
	type metadata struct {
		UID             types.UID `json:"uid"`
		ResourceVersion string    `json:"resourceVersion"`
	}
	body, err := json.Marshal(struct {
		metav1.TypeMeta
		Metadata metadata `json:"metadata"`
	}{
		metav1.TypeMeta{APIVersion: what.resource.GroupVersion().String(), Kind: what.kind},
		metadata{o.uid, o.version},
	})
	if err != nil {
		return err
	}
	_, err = c.metadata.Resource(what.resource).Namespace(o.Namespace).
		Patch(ctx, o.Name, types.ApplyPatchType, body, metav1.PatchOptions{FieldManager: manager})
	return err
}
