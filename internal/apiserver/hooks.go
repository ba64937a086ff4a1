package apiserver

import (
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/component-base/compatibility"

	"wherry.dev/internal/apiserver/hooks"
	"wherry.dev/internal/apiserver/registry"
)

// makeHooks builds what runs webhooks and policies.
func (s *Server) makeHooks(version compatibility.EffectiveVersion) error {
	self := s.ClientConfig(user.APIServerUser, user.SystemPrivilegedGroup)
	self.WarningHandler = rest.NoWarnings{}
	var err error
	s.hooks, err = hooks.New(hooks.Config{
		Self: self, Mapper: s.mapper, Authorizer: s.authorizer, Version: version,
		Services: s.serviceURLs,
		Stored: func(resource schema.GroupResource) cache.ListerWatcher {
			return registry.ListWatch(s.store(resource.Group, resource.Resource))
		},
		Disabled: s.cfg.DisableAdmission,
		Exempt:   s.ownBootstrap,
	})
	return err
}

// ownBootstrap reports whether a request is part of this server's start. Nobody else's webhook may keep
// it from starting: what serves the webhook may itself wait for this server.
func (s *Server) ownBootstrap(a admission.Attributes) bool {
	select {
	case <-s.ready:
		return false
	default:
		return a.GetUserInfo().GetName() == user.APIServerUser
	}
}
