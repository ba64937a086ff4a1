package review

import (
	"context"
	"errors"
	"net/http"

	authenticationv1 "k8s.io/api/authentication/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"
)

// Authentication returns the endpoints of authentication.k8s.io.
func Authentication(who authenticator.Request, audiences []string) map[string]rest.Storage {
	return map[string]rest.Storage{
		"tokenreviews": question[*authenticationv1.TokenReview]{
			newT:     func() *authenticationv1.TokenReview { return &authenticationv1.TokenReview{} },
			singular: "tokenreview",
			answer: func(ctx context.Context, q *authenticationv1.TokenReview) (*authenticationv1.TokenReview, error) {
				return reviewToken(ctx, who, audiences, q)
			},
		},
		"selfsubjectreviews": question[*authenticationv1.SelfSubjectReview]{
			newT:     func() *authenticationv1.SelfSubjectReview { return &authenticationv1.SelfSubjectReview{} },
			singular: "selfsubjectreview",
			answer:   whoAmI,
		},
	}
}

func reviewToken(ctx context.Context, who authenticator.Request, audiences []string, q *authenticationv1.TokenReview) (*authenticationv1.TokenReview, error) {
	if q.Spec.Token == "" {
		return nil, apierrors.NewBadRequest("token is required for TokenReview in authentication")
	}
	wanted := authenticator.Audiences(q.Spec.Audiences)
	if len(wanted) == 0 {
		wanted = audiences
	}
	// Only the token counts: not the certificate, nor who asks.
	//nolint:contextcheck // the token's user must not inherit the caller's
	req := (&http.Request{Header: http.Header{"Authorization": {"Bearer " + q.Spec.Token}}}).WithContext(
		authenticator.WithAudiences(context.WithoutCancel(withoutUser{ctx}), wanted))
	resp, ok, err := who.AuthenticateRequest(req)
	q.Status = authenticationv1.TokenReviewStatus{Authenticated: ok}
	if err != nil {
		q.Status.Error = err.Error()
	}
	if resp == nil || resp.User == nil {
		return q, nil
	}
	if len(wanted) > 0 && len(wanted.Intersect(resp.Audiences)) == 0 {
		return nil, apierrors.NewInternalError(errors.New("error validating audiences"))
	}
	q.Status.User, q.Status.Audiences = userInfo(resp.User), resp.Audiences
	return q, nil
}

// withoutUser hides the values of a context, including the user who asks.
type withoutUser struct{ context.Context }

func (withoutUser) Value(any) any { return nil }

func whoAmI(ctx context.Context, _ *authenticationv1.SelfSubjectReview) (*authenticationv1.SelfSubjectReview, error) {
	u, ok := genericapirequest.UserFrom(ctx)
	if !ok {
		return nil, apierrors.NewBadRequest("no user present on request")
	}
	return &authenticationv1.SelfSubjectReview{
		ObjectMeta: metav1.ObjectMeta{CreationTimestamp: metav1.Now()},
		Status:     authenticationv1.SelfSubjectReviewStatus{UserInfo: userInfo(u)},
	}, nil
}

func userInfo(u user.Info) authenticationv1.UserInfo {
	info := authenticationv1.UserInfo{Username: u.GetName(), UID: u.GetUID(), Groups: u.GetGroups()}
	for k, v := range u.GetExtra() {
		if info.Extra == nil {
			info.Extra = map[string]authenticationv1.ExtraValue{}
		}
		info.Extra[k] = v
	}
	return info
}
