package auth

import (
	"context"
	"errors"
	"time"

	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
)

// knowPatience is how long a request waits for what is stored to be read.
const knowPatience = 10 * time.Second

var errNotKnown = errors.New("this server has only just started, and has not read yet who may do what; try again")

// waiting decides once what it decides by has been read. A server that has just started accepts requests before that; a client
// with the right to do what it asks for must not be told that it has none.
type waiting struct {
	decider
	known <-chan struct{}
}

// wait returns an error if it is not known in time who may do what.
func (w *waiting) wait(ctx context.Context) error {
	select {
	case <-w.known:
		return nil
	default:
	}
	patience := time.NewTimer(knowPatience)
	defer patience.Stop()
	select {
	case <-w.known:
		return nil
	case <-patience.C:
		return errNotKnown
	case <-ctx.Done():
		return errors.Join(errNotKnown, ctx.Err())
	}
}

// Authorize implements authorizer.Authorizer.
func (w *waiting) Authorize(ctx context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
	if err := w.wait(ctx); err != nil {
		return authorizer.DecisionNoOpinion, "", err
	}
	return w.decider.Authorize(ctx, a)
}

// ConditionsAwareAuthorize implements authorizer.Authorizer.
func (w *waiting) ConditionsAwareAuthorize(ctx context.Context, a authorizer.Attributes) authorizer.ConditionsAwareDecision {
	if err := w.wait(ctx); err != nil {
		return authorizer.ConditionsAwareDecisionNoOpinion("", err)
	}
	return w.decider.ConditionsAwareAuthorize(ctx, a)
}

// RulesFor implements authorizer.RuleResolver.
func (w *waiting) RulesFor(ctx context.Context, u user.Info, namespace string) ([]authorizer.ResourceRuleInfo, []authorizer.NonResourceRuleInfo, bool, error) {
	if err := w.wait(ctx); err != nil {
		return nil, nil, true, err
	}
	return w.decider.RulesFor(ctx, u, namespace)
}
