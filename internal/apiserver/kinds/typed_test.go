package kinds

import (
	"math/rand"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/managedfields"
	openapinamer "k8s.io/apiserver/pkg/endpoints/openapi"
	genericapiserver "k8s.io/apiserver/pkg/server"
	openapibuilder "k8s.io/kube-openapi/pkg/builder3"
	openapiutil "k8s.io/kube-openapi/pkg/util"
	"sigs.k8s.io/randfill"
	"sigs.k8s.io/structured-merge-diff/v6/typed"

	"wherry.dev/internal/apiserver/openapi"
	"wherry.dev/internal/apiserver/scheme"
)

// TestTrustIsNotMisplaced: what is not walked through compares as what the library has walked through, be it made
// of random values, with the same key twice in a list or with none.
func TestTrustIsNotMisplaced(t *testing.T) {
	s := scheme.New()
	cfg := genericapiserver.DefaultOpenAPIV3Config(openapi.GetOpenAPIDefinitions, openapinamer.NewDefinitionNamer(s))
	samples := []runtime.Object{&corev1.Pod{}, &corev1.Node{}, &corev1.Service{}}
	var names []string
	for _, sample := range samples {
		names = append(names, openapiutil.GetCanonicalTypeName(sample))
	}
	models, err := openapibuilder.BuildOpenAPIDefinitionsForResources(cfg, names...)
	if err != nil {
		t.Fatal(err)
	}
	library, err := managedfields.NewTypeConverter(models, false)
	if err != nil {
		t.Fatal(err)
	}
	ours := &trusting{TypeConverter: library}
	random := randfill.NewWithSeed(1).NilChance(.3).NumElements(0, 3).MaxDepth(10).Funcs(
		func(q *resource.Quantity, c randfill.Continue) {
			*q = *resource.NewQuantity(c.Int63n(1000), resource.DecimalSI)
		},
		func(v *intstr.IntOrString, c randfill.Continue) { *v = intstr.FromInt32(c.Int31()) },
		func(f *metav1.FieldsV1, _ randfill.Continue) { f.SetRawString("{}") },
		func(m *metav1.TypeMeta, _ randfill.Continue) { *m = metav1.TypeMeta{} },
		func(name *string, c randfill.Continue) {
			*name = string(rune('a' + rand.New(rand.NewSource(c.Int63())).Intn(4)))
		},
	)
	compared := 0
	for round := range 150 {
		for _, sample := range samples {
			a, b := sample.DeepCopyObject(), sample.DeepCopyObject()
			random.Fill(a)
			switch round % 5 {
			case 0:
				b = a.DeepCopyObject()
			case 1: // b is empty
			default:
				random.Fill(b)
			}
			for _, obj := range []runtime.Object{a, b} {
				gvks, _, err := s.ObjectKinds(obj)
				if err != nil {
					t.Fatal(err)
				}
				obj.GetObjectKind().SetGroupVersionKind(gvks[0])
			}
			want, wantErr := compare(library, a, b)
			got, err := compare(ours, a, b)
			if (err == nil) != (wantErr == nil) {
				t.Fatalf("error %v, the library's is %v", err, wantErr)
			}
			if err == nil && got != want {
				t.Fatalf("differences:\n%s\nthe library's:\n%s", got, want)
			}
			if err == nil {
				compared++
			}
		}
	}
	if compared < 100 {
		t.Errorf("only %d pairs could be compared", compared)
	}
}

func compare(c managedfields.TypeConverter, a, b runtime.Object) (string, error) {
	one, err := c.ObjectToTyped(a, typed.AllowDuplicates)
	if err != nil {
		return "", err
	}
	other, err := c.ObjectToTyped(b, typed.AllowDuplicates)
	if err != nil {
		return "", err
	}
	difference, err := one.Compare(other)
	if err != nil {
		return "", err
	}
	return difference.String(), nil
}
