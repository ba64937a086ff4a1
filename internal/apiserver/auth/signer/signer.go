// Package signer decides who may act for a signer of certificates: approve, sign or attest its
// trust anchors.
package signer

import (
	"context"
	"strings"

	certificatesv1 "k8s.io/api/certificates/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
)

// Allows reports whether a user may act for the signer, by the signer's name or by its domain with
// a star. An error counts as no.
func Allows(ctx context.Context, may authorizer.Authorizer, who user.Info, verb, name string) bool {
	domain, _, _ := strings.Cut(name, "/")
	for _, name := range []string{name, domain + "/*"} {
		decision, _, err := may.Authorize(ctx, authorizer.AttributesRecord{
			User: who, Verb: verb, Name: name, APIGroup: certificatesv1.GroupName, APIVersion: "*", Resource: "signers", ResourceRequest: true,
		})
		if err == nil && decision == authorizer.DecisionAllow {
			return true
		}
	}
	return false
}
