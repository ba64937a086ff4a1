package config

import (
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
)

// LimitRequests leaves it to the API server's own fairness to limit requests, unless a limit other
// than upstream's default is configured.
func (c *Config) LimitRequests(client *rest.Config) {
	client.QPS, client.ContentType = -1, c.ContentType
	if qps := ptr.Deref(c.KubeAPIQPS, defaultQPS); qps != defaultQPS && qps > 0 {
		client.QPS, client.Burst = float32(qps), int(c.KubeAPIBurst)
	}
}
