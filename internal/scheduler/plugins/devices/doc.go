// Package devices has the scheduler's plugin DynamicResources (KEP-4381): pods get the devices that their
// ResourceClaims ask for, with upstream's reasons. Which devices those are is for the library's allocator to say.
//
//	PreEnqueue   the pod's claims exist
//	PreFilter    all may be used; what is allocated, to whomever, is gathered for the allocator
//	Filter       allocated claims can be used on the node; the allocator finds devices there for the others
//	PostFilter   a claim that is allocated where the pod cannot run, and that nobody else uses, is given up
//	Reserve      the devices are promised to the claims, in memory (claims.go)
//	PreBind      allocation and reservation are written; devices that take time to get ready are waited for
//
// A device is taken from when it is promised until the informer shows its claim without it. Nothing else keeps one
// from being given to two claims: the API server does not.
package devices
