package storageversionmigrator

import (
	"context"
	"encoding/json"
	"fmt"

	"k8s.io/apiextensions-apiserver/pkg/apihelpers"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// condition is short for what a definition says of migrations.
type condition = apiextensionsv1.CustomResourceDefinitionCondition

// definitionManager is upstream's name for the writer of a definition's status.
const definitionManager = "migration-runner-controller"

// definition returns the CustomResourceDefinition of the migration's resource, nil if it has none.
func (c *Controller) definition(ctx context.Context, m *migration) (*apiextensionsv1.CustomResourceDefinition, error) {
	if m.Spec.Resource.Group == "" {
		return nil, nil
	}
	crd, err := c.definitions.Get(ctx, key(m), metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, refused("get CustomResourceDefinition "+key(m), err)
	}
	return crd, nil
}

// mark says on the definition that its objects are being migrated, and which generation of it they are
// migrated to.
func (c *Controller) mark(ctx context.Context, m *migration) error {
	crd, err := c.definition(ctx, m)
	if err != nil || crd == nil {
		return err
	}
	return c.report(ctx, crd, nil, condition{
		Status: apiextensionsv1.ConditionTrue, Reason: "MigrationRunning",
		Message: fmt.Sprintf("Migration %s is running", m.Name),
	})
}

// unmark says on the definition how the migration of its objects ended. If all are in one version now, it is
// the only one in status.storedVersions, so that the others can be taken out of the definition.
func (c *Controller) unmark(ctx context.Context, m *migration, success bool) error {
	crd, err := c.definition(ctx, m)
	if err != nil || crd == nil {
		return err
	}
	is := apihelpers.FindCRDCondition(crd, apiextensionsv1.StorageMigrating)
	if is == nil || is.Status != apiextensionsv1.ConditionTrue {
		return nil // it was said before
	}
	stored, how := outcome(crd, is.ObservedGeneration, success)
	return c.report(ctx, crd, stored, how)
}

// outcome returns what a definition says after a migration that began at a generation of it, and which
// versions are stored now, nil if that is not known: while a migration goes on, the definition may have been
// changed to another version.
func outcome(crd *apiextensionsv1.CustomResourceDefinition, began int64, success bool) ([]string, condition) {
	out := condition{Status: apiextensionsv1.ConditionFalse, Reason: "MigrationFailed", Message: "The migration has failed"}
	if !success {
		return nil, out
	}
	out.Reason, out.Message = "MigrationSucceeded", "The migration has succeeded"
	for _, v := range crd.Spec.Versions {
		if v.Storage && began == crd.Generation {
			out.Message += " and the stored versions have been updated"
			return []string{v.Name}, out
		}
	}
	out.Message += " but the stored versions have not been updated due to a generation mismatch"
	return nil, out
}

// report writes the condition StorageMigrating, and status.storedVersions unless it is nil. An apply would
// not do: its next one, without versions, would remove them.
func (c *Controller) report(ctx context.Context, crd *apiextensionsv1.CustomResourceDefinition, stored []string, how condition) error {
	how.Type, how.ObservedGeneration = apiextensionsv1.StorageMigrating, crd.Generation
	apihelpers.SetCRDCondition(crd, how)
	// The library keeps the old one.
	apihelpers.FindCRDCondition(crd, how.Type).ObservedGeneration = how.ObservedGeneration
	status := map[string]any{"conditions": crd.Status.Conditions}
	if stored != nil {
		status["storedVersions"] = stored
	}
	body, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": crd.UID, "resourceVersion": crd.ResourceVersion},
		"status":   status,
	})
	if err != nil {
		return err
	}
	opts := metav1.PatchOptions{FieldManager: definitionManager}
	_, err = c.definitions.Patch(ctx, crd.Name, types.MergePatchType, body, opts, "status")
	if err != nil && !absent(err) {
		return fmt.Errorf("status of CustomResourceDefinition %s: %w", crd.Name, err)
	}
	return nil
}
