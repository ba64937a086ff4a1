package auth

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/authorization/authorizerfactory"
)

// What a server has not read yet is no reason to refuse anything: the request waits, for a while.
func TestWhoMayDoWhatIsReadFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		known := make(chan struct{})
		w := &waiting{authorizerfactory.NewAlwaysAllowAuthorizer(), known}
		ask := func(ctx context.Context) error {
			start := time.Now()
			d, _, err := w.Authorize(ctx, authorizer.AttributesRecord{})
			aware := w.ConditionsAwareAuthorize(ctx, authorizer.AttributesRecord{})
			rules, _, incomplete, ruleErr := w.RulesFor(ctx, &user.DefaultInfo{}, "ns")
			allowed := err == nil
			if (d == authorizer.DecisionAllow) != allowed || aware.IsAllow() != allowed || incomplete == allowed ||
				(len(rules) > 0) != allowed || errors.Is(ruleErr, errNotKnown) == allowed {
				t.Errorf("after %v: %v %v; %v; %v %v %v", time.Since(start), d, err, aware, rules, incomplete, ruleErr)
			}
			return err
		}
		if err := ask(t.Context()); !errors.Is(err, errNotKnown) {
			t.Errorf("a server that never knows answers %v", err)
		}
		gone, leave := context.WithCancel(t.Context())
		leave()
		if err := ask(gone); !errors.Is(err, errNotKnown) {
			t.Errorf("whoever is gone is answered %v", err)
		}
		time.AfterFunc(time.Second, func() { close(known) })
		start := time.Now()
		if err := ask(t.Context()); err != nil || time.Since(start) != time.Second {
			t.Errorf("after %v: %v", time.Since(start), err)
		}
		if err := ask(gone); err != nil {
			t.Errorf("a server that knows answers %v", err)
		}
	})
}
