package apiserver

import (
	genericadmission "k8s.io/apiserver/pkg/admission"

	"wherry.dev/internal/apiserver/admission"
)

// admissionPlugins returns what the flags say about admission.
func (c *Config) admissionPlugins() admission.Selection {
	return admission.Selection{Enable: c.EnableAdmission, Disable: c.DisableAdmission, ConfigFile: c.AdmissionConfigFile}
}

// makeAdmission builds the admission plugins on the stores.
func (s *Server) makeAdmission() (genericadmission.Interface, error) {
	mapper, err := s.kinds.Mapper()
	if err != nil {
		return nil, err
	}
	return admission.Chain(admission.Deps{
		Lookup:     s.lookup,
		Authorizer: s.auth.Authorizer,
		Room:       s.backend.Room,
		Client:     s.ownClient,
		Kinds:      mapper,
	}, s.cfg.admissionPlugins())
}
