package apiserver

import (
	"fmt"

	"k8s.io/apimachinery/pkg/api/meta"
	genericadmission "k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	"wherry.dev/internal/apiserver/admission"
)

// admissionPlugins returns what the flags say about admission.
func (c *Config) admissionPlugins() admission.Selection {
	return admission.Selection{Enable: c.EnableAdmission, Disable: c.DisableAdmission, ConfigFile: c.AdmissionConfigFile}
}

// makeAdmission builds the admission plugins on the stores.
func (s *Server) makeAdmission() (genericadmission.Interface, error) {
	kinds, err := s.kinds()
	if err != nil {
		return nil, err
	}
	return admission.Chain(admission.Deps{
		Lookup:     s.lookup,
		Authorizer: func() authorizer.Authorizer { return s.authorizer },
		Room:       s.backend.Room,
		Client:     s.ownClient,
		Kinds:      kinds,
	}, s.cfg.admissionPlugins())
}

// kinds returns the resources of the kinds that are stored.
func (s *Server) kinds() (meta.RESTMapper, error) {
	mapper := meta.NewDefaultRESTMapper(nil)
	for _, b := range s.built {
		kinds, _, err := s.scheme.ObjectKinds(b.Store.New())
		if err != nil {
			return nil, fmt.Errorf("kind of %s: %w", b.GVR.Resource, err)
		}
		scope := meta.RESTScope(meta.RESTScopeRoot)
		if b.Store.NamespaceScoped() {
			scope = meta.RESTScopeNamespace
		}
		for _, gv := range b.Served {
			mapper.AddSpecific(gv.WithKind(kinds[0].Kind), gv.WithResource(b.GVR.Resource), gv.WithResource(b.Store.GetSingularName()), scope)
		}
	}
	return mapper, nil
}
