package scheduler

import (
	"encoding/json"
	"net/http"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	componentconfigv1 "k8s.io/component-base/config/v1alpha1"
	"k8s.io/klog/v2"
	configv1 "k8s.io/kube-scheduler/config/v1"

	"wherry.dev/internal/scheduler/framework"
	"wherry.dev/internal/scheduler/plugins"
	"wherry.dev/internal/scheduler/queue"
)

// Effective returns the configuration with all defaults, as it would be written to a file.
func (c *Config) Effective() *configv1.KubeSchedulerConfiguration {
	out := &configv1.KubeSchedulerConfiguration{}
	if c.file != nil {
		out = c.file.DeepCopy()
	}
	out.TypeMeta = metav1.TypeMeta{APIVersion: configv1.SchemeGroupVersion.String(), Kind: "KubeSchedulerConfiguration"}
	out.Parallelism, out.PercentageOfNodesToScore = new(int32(c.Parallelism)), &c.PercentageOfNodesToScore
	seconds := func(d, or time.Duration) *int64 {
		if d <= 0 {
			d = or
		}
		return new(int64(d / time.Second))
	}
	out.PodInitialBackoffSeconds = seconds(c.InitialBackoff, queue.DefaultInitialBackoff)
	out.PodMaxBackoffSeconds = seconds(c.MaxBackoff, queue.DefaultMaxBackoff)
	out.EnableProfiling, out.EnableContentionProfiling = new(!c.NoProfiling), &c.ContentionProfiling
	out.ClientConnection.Kubeconfig = c.Kubeconfig
	l := c.LeaderElection
	out.LeaderElection = componentconfigv1.LeaderElectionConfiguration{
		LeaderElect: &l.LeaderElect, LeaseDuration: l.LeaseDuration, RenewDeadline: l.RenewDeadline, RetryPeriod: l.RetryPeriod,
		ResourceLock: l.ResourceLock, ResourceName: l.ResourceName, ResourceNamespace: l.ResourceNamespace,
	}
	for i, p := range c.Profiles {
		if i == len(out.Profiles) {
			out.Profiles = append(out.Profiles, configv1.KubeSchedulerProfile{})
		}
		to := &out.Profiles[i]
		to.SchedulerName, to.PercentageOfNodesToScore = new(p.SchedulerName), p.PercentageOfNodesToScore
		to.Plugins = framework.Merge(plugins.Default(c.Gates), p.Plugins)
	}
	return out
}

// Configz serves the configuration, as kube-scheduler does at /configz.
func (c *Config) Configz(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	if err := json.NewEncoder(w).Encode(map[string]any{"componentconfig": c.Effective()}); err != nil {
		klog.FromContext(r.Context()).V(2).Info("Cannot send the configuration", "err", err)
	}
}
