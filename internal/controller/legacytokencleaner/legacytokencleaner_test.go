package legacytokencleaner

import (
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestWhatBecomesOfAToken(t *testing.T) {
	now := time.Date(2026, 6, 1, 12, 0, 0, 0, time.UTC)
	deleted := metav1.NewTime(now)
	for name, tc := range map[string]struct {
		made    time.Time
		used    string
		invalid string
		deleted *metav1.Time
		want    step
	}{
		"young":                     {made: now.Add(-unused), want: keep},
		"old, never used":           {made: now.Add(-unused - 1), want: mark},
		"used within a year":        {used: "2025-06-01", want: keep},
		"used long ago":             {used: "2025-05-31", want: mark},
		"used on no date":           {used: "yesterday", want: keep},
		"marked within a year":      {invalid: "2025-06-01", want: keep},
		"marked long ago":           {invalid: "2025-05-31", want: remove},
		"marked on no date":         {invalid: "x", want: mark},
		"marked, but used after":    {invalid: "2025-05-31", used: "2026-01-01", want: keep},
		"being deleted":             {invalid: "2025-05-31", deleted: &deleted, want: keep},
		"marked and used long ago":  {invalid: "2025-05-31", used: "2024-01-01", want: remove},
		"made long before it began": {made: time.Date(2020, 1, 1, 0, 0, 0, 0, time.UTC), want: mark},
	} {
		t.Run(name, func(t *testing.T) {
			s := &v1.Secret{ObjectMeta: metav1.ObjectMeta{CreationTimestamp: metav1.NewTime(tc.made), DeletionTimestamp: tc.deleted, Labels: map[string]string{}}}
			if tc.used != "" {
				s.Labels[lastUsed] = tc.used
			}
			if tc.invalid != "" {
				s.Labels[invalidSince] = tc.invalid
			}
			if got := next(s, now); got != tc.want {
				t.Errorf("%d, want %d", got, tc.want)
			}
		})
	}
}
