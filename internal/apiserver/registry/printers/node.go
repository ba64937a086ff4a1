package printers

import (
	"time"

	nodev1 "k8s.io/api/node/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"wherry.dev/internal/apiserver/registry"
)

// RuntimeClasses is the table of runtime classes.
var RuntimeClasses = registry.Table[*nodev1.RuntimeClass]{
	Columns: []metav1.TableColumnDefinition{nameColumn, column("Handler", nodev1.RuntimeClass{}.SwaggerDoc()["handler"]), ageColumn},
	Cells:   func(c *nodev1.RuntimeClass, now time.Time) []any { return []any{c.Name, c.Handler, age(c, now)} },
}
