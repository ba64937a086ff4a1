package admission

import (
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authentication/user"
)

func eventLimitsOf(limits string) *strings.Reader {
	return strings.NewReader("apiVersion: eventratelimit.admission.k8s.io/v1alpha1\nkind: Configuration\nlimits: [" + limits + "]\n")
}

func TestEventsAreLimited(t *testing.T) {
	// event returns the attributes of a write: namespace/user/object
	event := func(words string) admission.Attributes {
		w := strings.Split(words, "/")
		e := &corev1.Event{ObjectMeta: metav1.ObjectMeta{Name: "e", Namespace: w[0]}, InvolvedObject: corev1.ObjectReference{Name: w[2]}}
		return admission.NewAttributesRecord(e, nil, schema.GroupVersionKind{Version: "v1", Kind: "Event"}, w[0], "e",
			corev1.SchemeGroupVersion.WithResource("events"), "", admission.Create, nil, false, &user.DefaultInfo{Name: w[1]})
	}
	now := time.Unix(0, 0)
	for name, tc := range map[string]struct {
		limit  string
		events string // * is one that is refused, + a second that passes
	}{
		"server":    {"{type: Server, qps: 1, burst: 2}", "a/x/o b/y/p *c/z/q + d/x/o *d/x/o"},
		"namespace": {"{type: Namespace, qps: 1, burst: 1}", "a/x/o *a/y/p b/x/o"},
		"user":      {"{type: User, qps: 2, burst: 1}", "a/x/o *b/x/o a/y/o + b/x/o"},
		"object":    {"{type: SourceAndObject, qps: 1, burst: 1}", "a/x/o *b/x/o a/x/p"},
		"cache":     {"{type: User, qps: 1, burst: 1, cacheSize: 1}", "a/x/o a/y/o a/x/o *a/x/o"},
		"both":      {"{type: User, qps: 1, burst: 1}, {type: Server, qps: 1, burst: 2}", "a/x/o a/y/o *a/z/o"},
	} {
		t.Run(name, func(t *testing.T) {
			p, err := newEventRateLimit(eventLimitsOf(tc.limit), func() time.Time { return now })
			if err != nil {
				t.Fatal(err)
			}
			limits, ok := p.(admission.ValidationInterface)
			if !ok {
				t.Fatalf("%T", p)
			}
			for i, words := range strings.Fields(tc.events) {
				if words == "+" {
					now = now.Add(time.Second)
					continue
				}
				is, refused := strings.CutPrefix(words, "*")
				if err := limits.Validate(t.Context(), event(is), nil); refused != apierrors.IsTooManyRequests(err) || !refused && err != nil {
					t.Errorf("%d, %s: %v", i, words, err)
				}
			}
		})
	}
}

func TestEventLimitsAreChecked(t *testing.T) {
	for config, want := range map[string]string{
		"":                                  "limits: Invalid value: null: must not be empty",
		"{type: Node, qps: 1, burst: 1}":    `limits[0].type: Unsupported value: "Node"`,
		"{type: Server, qps: 0, burst: 1}":  "limits[0].qps: Invalid value: 0: must be positive",
		"{type: Server, qps: 1, burst: -1}": "limits[0].burst: Invalid value: -1: must be positive",
		"{type: Server, rate: 1}":           `unknown field "rate"`,
		"{type: User, qps: 1, burst: 1, cacheSize: -1}": "limits[0].cacheSize: Invalid value: -1: must not be negative",
	} {
		_, err := newEventRateLimit(eventLimitsOf(config), time.Now)
		if config == "" {
			_, err = newEventRateLimit(nil, time.Now)
		}
		if got := fmt.Sprint(err); !strings.Contains(got, want) {
			t.Errorf("%s: %s, want %s", config, got, want)
		}
	}
	_, err := newEventRateLimit(strings.NewReader("kind: Configuration\napiVersion: v1\n"), time.Now)
	if want := `must be "Configuration" of "eventratelimit.admission.k8s.io/v1alpha1"`; err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("another version: %v", err)
	}
}
