package scheme

import (
	"k8s.io/apimachinery/pkg/conversion"
	"k8s.io/apimachinery/pkg/runtime"
)

// addConversion registers how an In becomes an Out. f may let the two share what they point to.
func addConversion[In, Out any](s *runtime.Scheme, f func(in *In, out *Out) error) error {
	return s.AddConversionFunc((*In)(nil), (*Out)(nil), func(a, b any, _ conversion.Scope) error {
		return f(a.(*In), b.(*Out))
	})
}

// total is a conversion that cannot fail.
func total[In, Out any](f func(in *In, out *Out)) func(*In, *Out) error {
	return func(in *In, out *Out) error {
		f(in, out)
		return nil
	}
}

// each converts a list. A nil list stays nil.
func each[In, Out any](in []In, f func(in *In, out *Out) error) ([]Out, error) {
	if in == nil {
		return nil, nil
	}
	out := make([]Out, len(in))
	for i := range in {
		if err := f(&in[i], &out[i]); err != nil {
			return nil, err
		}
	}
	return out, nil
}
