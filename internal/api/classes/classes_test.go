package classes

import (
	"slices"
	"testing"
	"time"

	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestNewestOfSeveralDefaultClassesWins(t *testing.T) {
	class := func(name string, second int, mark string) *storagev1.StorageClass {
		c := &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: name, CreationTimestamp: metav1.NewTime(time.Unix(int64(second), 0))}}
		if mark != "" {
			c.Annotations = map[string]string{mark: "true"}
		}
		return c
	}
	const now, beta = "storageclass.kubernetes.io/is-default-class", "storageclass.beta.kubernetes.io/is-default-class"
	for _, tc := range []struct {
		name    string
		classes []*storagev1.StorageClass
		want    string
	}{
		{"none", []*storagev1.StorageClass{class("a", 1, "")}, ""},
		{"newest", []*storagev1.StorageClass{class("a", 1, now), class("b", 3, beta), class("c", 2, now), class("d", 4, "")}, "b"},
		{"same second", []*storagev1.StorageClass{class("b", 1, now), class("a", 1, now), class("c", 1, now)}, "a"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got := ""
			if c, ok := Newest(slices.Values(tc.classes), IsDefaultStorage); ok {
				got = c.Name
			}
			if got != tc.want {
				t.Errorf("default class %q, want %q", got, tc.want)
			}
		})
	}
}
