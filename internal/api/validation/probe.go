package validation

import (
	corev1 "k8s.io/api/core/v1"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
)

// handlers checks the probes and hooks of a container that keeps running.
func (c *podContext) handlers(at path, ctr *corev1.Container) {
	if ctr.Lifecycle != nil {
		c.lifecycle(at.Child("lifecycle"), ctr.Lifecycle)
	}
	c.probe(at.Child("livenessProbe"), ctr.LivenessProbe, true)
	c.probe(at.Child("readinessProbe"), ctr.ReadinessProbe, false)
	c.probe(at.Child("startupProbe"), ctr.StartupProbe, true)
}

// probe checks a probe. For all but readiness probes, oneSuccess is set: one success must be
// enough.
func (c *podContext) probe(at path, probe *corev1.Probe, oneSuccess bool) {
	if probe == nil {
		return
	}
	c.handler(at, &handler{exec: probe.Exec, http: probe.HTTPGet, tcp: probe.TCPSocket, grpc: probe.GRPC})
	c.notNegative(at.Child("initialDelaySeconds"), int64(probe.InitialDelaySeconds))
	c.notNegative(at.Child("timeoutSeconds"), int64(probe.TimeoutSeconds))
	c.notNegative(at.Child("periodSeconds"), int64(probe.PeriodSeconds))
	c.notNegative(at.Child("successThreshold"), int64(probe.SuccessThreshold))
	c.notNegative(at.Child("failureThreshold"), int64(probe.FailureThreshold))
	grace := probe.TerminationGracePeriodSeconds
	if grace != nil && *grace <= 0 {
		c.invalid(at.Child("terminationGracePeriodSeconds"), *grace, "must be greater than 0")
	}
	if oneSuccess {
		if probe.SuccessThreshold != 1 {
			c.invalid(at.Child("successThreshold"), probe.SuccessThreshold, "must be 1")
		}
		return
	}
	if grace != nil {
		c.invalid(at.Child("terminationGracePeriodSeconds"), *grace, "must not be set for readinessProbes")
	}
}

// handler is what a probe or a hook does: exactly one of these.
type handler struct {
	exec  *corev1.ExecAction
	http  *corev1.HTTPGetAction
	tcp   *corev1.TCPSocketAction
	grpc  *corev1.GRPCAction
	sleep *corev1.SleepAction
}

func (c *podContext) handler(at path, h *handler) {
	kinds := []struct {
		name  string
		set   bool
		check func(path)
	}{
		{"exec", h.exec != nil, func(at path) {
			if len(h.exec.Command) == 0 {
				c.required(at.Child("command"), "")
			}
		}},
		{"httpGet", h.http != nil, func(at path) { c.httpGet(at, h.http) }},
		{"tcpSocket", h.tcp != nil, func(at path) { c.portOrName(at.Child("port"), h.tcp.Port) }},
		{"grpc", h.grpc != nil, func(at path) { c.portNumber(at.Child("port"), h.grpc.Port) }},
		{"sleep", h.sleep != nil, func(at path) { c.sleep(at, h.sleep) }},
	}
	found := false
	for _, k := range kinds {
		switch {
		case !k.set:
		case found:
			c.forbidden(at.Child(k.name), "may not specify more than 1 handler type")
		default:
			found = true
			k.check(at.Child(k.name))
		}
	}
	if !found {
		c.required(at, "must specify a handler type")
	}
}

func (c *podContext) httpGet(at path, a *corev1.HTTPGetAction) {
	c.present(at.Child("path"), a.Path)
	c.portOrName(at.Child("port"), a.Port)
	oneOf(c.problems, at.Child("scheme"), a.Scheme, corev1.URISchemeHTTP, corev1.URISchemeHTTPS)
	for _, h := range a.HTTPHeaders {
		matches(c.problems, at.Child("httpHeaders"), h.Name, utilvalidation.IsHTTPHeaderName(h.Name))
	}
}

func (c *podContext) sleep(at path, a *corev1.SleepAction) {
	grace := c.spec.TerminationGracePeriodSeconds
	if grace != nil && (a.Seconds < 0 || a.Seconds > *grace) {
		c.invalid(at, a.Seconds, "must be non-negative and less than terminationGracePeriodSeconds (%d)", *grace)
	}
}

func (c *podContext) lifecycle(at path, l *corev1.Lifecycle) {
	hook := func(at path, h *corev1.LifecycleHandler) {
		if h != nil {
			c.handler(at, &handler{exec: h.Exec, http: h.HTTPGet, tcp: h.TCPSocket, sleep: h.Sleep})
		}
	}
	hook(at.Child("postStart"), l.PostStart)
	hook(at.Child("preStop"), l.PreStop)
	if l.StopSignal == nil {
		return
	}
	at = at.Child("stopSignal")
	switch os := c.spec.OS; {
	case os == nil:
		c.forbidden(at, "may not be set for containers with empty `spec.os.name`")
	case os.Name == corev1.Windows:
		oneOf(c.problems, at, *l.StopSignal, corev1.SIGKILL, corev1.SIGTERM)
	case os.Name == corev1.Linux:
		oneOf(c.problems, at, *l.StopSignal, linuxSignals...)
	}
}

var linuxSignals = []corev1.Signal{
	corev1.SIGABRT, corev1.SIGALRM, corev1.SIGBUS, corev1.SIGCHLD, corev1.SIGCLD, corev1.SIGCONT, corev1.SIGFPE, corev1.SIGHUP,
	corev1.SIGILL, corev1.SIGINT, corev1.SIGIO, corev1.SIGIOT, corev1.SIGKILL, corev1.SIGPIPE, corev1.SIGPOLL, corev1.SIGPROF,
	corev1.SIGPWR, corev1.SIGQUIT, corev1.SIGSEGV, corev1.SIGSTKFLT, corev1.SIGSTOP, corev1.SIGSYS, corev1.SIGTERM, corev1.SIGTRAP,
	corev1.SIGTSTP, corev1.SIGTTIN, corev1.SIGTTOU, corev1.SIGURG, corev1.SIGUSR1, corev1.SIGUSR2, corev1.SIGVTALRM, corev1.SIGWINCH,
	corev1.SIGXCPU, corev1.SIGXFSZ, corev1.SIGRTMIN, corev1.SIGRTMINPLUS1, corev1.SIGRTMINPLUS2, corev1.SIGRTMINPLUS3,
	corev1.SIGRTMINPLUS4, corev1.SIGRTMINPLUS5, corev1.SIGRTMINPLUS6, corev1.SIGRTMINPLUS7, corev1.SIGRTMINPLUS8, corev1.SIGRTMINPLUS9,
	corev1.SIGRTMINPLUS10, corev1.SIGRTMINPLUS11, corev1.SIGRTMINPLUS12, corev1.SIGRTMINPLUS13, corev1.SIGRTMINPLUS14, corev1.SIGRTMINPLUS15,
	corev1.SIGRTMAXMINUS14, corev1.SIGRTMAXMINUS13, corev1.SIGRTMAXMINUS12, corev1.SIGRTMAXMINUS11, corev1.SIGRTMAXMINUS10, corev1.SIGRTMAXMINUS9,
	corev1.SIGRTMAXMINUS8, corev1.SIGRTMAXMINUS7, corev1.SIGRTMAXMINUS6, corev1.SIGRTMAXMINUS5, corev1.SIGRTMAXMINUS4, corev1.SIGRTMAXMINUS3,
	corev1.SIGRTMAXMINUS2, corev1.SIGRTMAXMINUS1, corev1.SIGRTMAX,
}
