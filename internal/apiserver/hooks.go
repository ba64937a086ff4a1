package apiserver

import (
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/tools/cache"
	"k8s.io/component-base/compatibility"

	"wherry.dev/internal/apiserver/hooks"
	"wherry.dev/internal/apiserver/registry"
	"wherry.dev/internal/apiserver/registry/resources"
)

// makeHooks builds what runs webhooks and policies.
func (s *Server) makeHooks(version compatibility.EffectiveVersion) error {
	var err error
	s.hooks, err = hooks.New(hooks.Config{
		Self: s.clients.Own(), Mapper: s.mapper, Authorizer: s.auth.Authorizer, Version: version,
		Services: s.urls,
		Stored: func(resource schema.GroupResource) cache.ListerWatcher {
			return registry.ListWatch(s.store(resource.Group, resource.Resource))
		},
		Files:   serializer.NewCodecFactory(s.kinds.Scheme, serializer.EnableStrict).UniversalDeserializer(),
		Default: s.kinds.Scheme.Default, Check: resources.StaticAdmission,
		ID:     s.id(),
		Exempt: s.ownBootstrap,
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
