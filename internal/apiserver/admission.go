package apiserver

import (
	"sync"

	genericadmission "k8s.io/apiserver/pkg/admission"
	"k8s.io/client-go/metadata"
	"k8s.io/component-base/compatibility"

	"wherry.dev/internal/apiserver/admission"
)

// admissionPlugins returns what the flags say about admission.
func (c *Config) admissionPlugins() admission.Selection {
	return admission.Selection{Enable: c.EnableAdmission, Disable: c.DisableAdmission, ConfigFile: c.AdmissionConfigFile}
}

// makeAdmission builds the admission plugins on the stores.
func (s *Server) makeAdmission(version compatibility.EffectiveVersion) (genericadmission.Interface, error) {
	if err := s.makeHooks(version); err != nil {
		return nil, err
	}
	return admission.Chain(admission.Deps{
		Lookup:     s.lookup,
		Authorizer: s.auth.Authorizer,
		Stay:       s.cfg.Stay,
		Room:       s.backend.Room,
		BeginTurn:  s.backend.BeginTurn,
		Client:     s.ownClient,
		Metadata:   sync.OnceValues(func() (metadata.Interface, error) { return metadata.NewForConfig(s.clients.Own()) }),
		Kinds:      s.mapper,
		Features:   s.cfg.features(),
		Hook:       s.hooks.Plugin,
	}, s.cfg.admissionPlugins())
}
