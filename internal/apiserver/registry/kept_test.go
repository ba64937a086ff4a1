package registry

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// TestKeptIsWhatIsThere: after any sequence of events, each namespace has its objects, by name, and what was read
// before has not changed.
func TestKeptIsWhatIsThere(t *testing.T) {
	for seed := range uint64(50) {
		random := rand.New(rand.NewPCG(seed, 0))
		k := Keep[*corev1.LimitRange](NewLookup(), corev1.Resource("limitranges"))
		if err := k.follower.Replace(nil, ""); err != nil {
			t.Fatal(err)
		}
		there := map[types.NamespacedName]*corev1.LimitRange{}
		for range 60 {
			key := types.NamespacedName{Namespace: fmt.Sprint("n", random.IntN(3)), Name: fmt.Sprint("l", random.IntN(5))}
			before, err := k.List(t.Context(), key.Namespace)
			if err != nil {
				t.Fatal(err)
			}
			copied := slices.Clone(before)
			obj := &corev1.LimitRange{}
			obj.Namespace, obj.Name, obj.ResourceVersion = key.Namespace, key.Name, "1"
			if random.IntN(3) == 0 {
				err = k.follower.Delete(obj)
				delete(there, key)
			} else {
				err = k.follower.Add(obj)
				there[key] = obj
			}
			if err != nil {
				t.Fatal(err)
			}
			if !slices.Equal(before, copied) {
				t.Fatalf("seed %d: what was read has changed", seed)
			}
		}
		for ns := range 3 {
			checkKept(t, k, fmt.Sprint("n", ns), there)
		}
	}
}

func checkKept(t *testing.T, k *Kept[*corev1.LimitRange], namespace string, there map[types.NamespacedName]*corev1.LimitRange) {
	t.Helper()
	var want []*corev1.LimitRange
	for key, obj := range there {
		if key.Namespace == namespace {
			want = append(want, obj)
		}
	}
	slices.SortFunc(want, func(a, b *corev1.LimitRange) int { return strings.Compare(a.Name, b.Name) })
	got, err := k.List(t.Context(), namespace)
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("%s has %v, want %v (%v)", namespace, got, want, err)
	}
	for _, obj := range want {
		if got, err := k.Get(t.Context(), namespace, obj.Name); err != nil || got != obj {
			t.Errorf("%s/%s: %v, %v", namespace, obj.Name, got, err)
		}
	}
	if _, err := k.Get(t.Context(), namespace, "absent"); err == nil {
		t.Error("what is not known was not looked up in storage")
	}
}
