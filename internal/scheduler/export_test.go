package scheduler

import fwk "k8s.io/kube-scheduler/framework"

// WithExtenders returns the configuration with extenders that need no network.
func (c Config) WithExtenders(e ...fwk.Extender) Config {
	c.extenders = e
	return c
}
