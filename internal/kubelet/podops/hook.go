package podops

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"

	"wherry.dev/internal/api/pods"
	"wherry.dev/internal/kubelet/podplan"
)

// runHook runs the postStart hook of an instance, once.
func (o *Ops) runHook(ctx context.Context, op podplan.Op, in *podplan.Input) podplan.Result {
	spec := pods.FindContainer(in.Pod, op.Name)
	if spec == nil || spec.Lifecycle == nil || spec.Lifecycle.PostStart == nil {
		return podplan.Result{}
	}
	err := o.handle(ctx, in, op, spec.Lifecycle.PostStart)
	if err == nil {
		return podplan.Result{}
	}
	if ctx.Err() != nil {
		return failed(ctx.Err())
	}
	klog.FromContext(ctx).V(2).Info("PostStart hook failed", "container", op.Name, "containerID", op.ID, "err", err)
	o.containerEvent(in.Pod, op.Name, v1.EventTypeWarning, "FailedPostStartHook", "PostStartHook failed")
	return podplan.Result{HookFailed: err.Error()}
}

// handle runs a lifecycle handler.
func (o *Ops) handle(ctx context.Context, in *podplan.Input, op podplan.Op, h *v1.LifecycleHandler) error {
	switch {
	case h.Exec != nil:
		_, stderr, err := o.Runtime.ExecSync(ctx, op.ID, h.Exec.Command, 0)
		if err != nil {
			return fmt.Errorf("exec lifecycle hook (%v): %w, stderr: %q", h.Exec.Command, err, stderr)
		}
		return nil
	case h.HTTPGet != nil:
		return o.handleHTTP(ctx, in, op, h.HTTPGet)
	case h.Sleep != nil:
		t := time.NewTimer(time.Duration(h.Sleep.Seconds) * time.Second)
		defer t.Stop()
		select {
		case <-t.C:
			return nil
		case <-ctx.Done():
			return errors.New("container terminated before sleep hook finished")
		}
	default:
		return errors.New("invalid handler: it has neither exec, httpGet nor sleep")
	}
}

// newHookClient returns a client that accepts any certificate, as probes do: it connects to a
// container of the pod by address.
func newHookClient(dial Dial) *http.Client {
	return &http.Client{Transport: &http.Transport{
		TLSClientConfig:   &tls.Config{InsecureSkipVerify: true}, //nolint:gosec // a pod's certificate has no name that could be checked
		DisableKeepAlives: true, Proxy: nil, DialContext: dial,
	}, CheckRedirect: pods.StayOnHost}
}

// hookAgent is the User-Agent of hook requests.
const hookAgent = "kube-lifecycle/1.37"

func (o *Ops) handleHTTP(ctx context.Context, in *podplan.Input, op podplan.Op, get *v1.HTTPGetAction) error {
	ip := podIP(in)
	if ip == "" && get.Host == "" {
		return errors.New("the pod has no address yet")
	}
	req, err := pods.HTTPRequest(ctx, get, pods.FindContainer(in.Pod, op.Name), ip, hookAgent)
	if err != nil {
		return err
	}
	err = o.ask(req)
	if err == nil || !strings.Contains(err.Error(), "server gave HTTP response to HTTPS client") {
		return err
	}
	// A server that speaks HTTP where HTTPS was specified is asked once more, without credentials.
	req.URL.Scheme = "http"
	req.Header.Del("Authorization")
	if err := o.ask(req); err != nil {
		return err
	}
	o.event(in.Pod, v1.EventTypeWarning, "LifecycleHTTPFallback",
		"request to HTTPS lifecycle hook %s got HTTP response, retry with HTTP succeeded", req.URL.Host)
	return nil
}

// ask sends a request; any response is a success.
func (o *Ops) ask(req *http.Request) error {
	resp, err := o.hooks.Do(req)
	if err != nil {
		return err
	}
	_, _ = io.CopyN(io.Discard, resp.Body, 10<<10)
	return resp.Body.Close()
}

func podIP(in *podplan.Input) string {
	if in.Pod.Spec.HostNetwork && len(in.Node.HostIPs) > 0 {
		return in.Node.HostIPs[0]
	}
	for i := range in.Sandboxes {
		if s := &in.Sandboxes[i]; s.Ready && len(s.IPs) > 0 {
			return s.IPs[0]
		}
	}
	return ""
}
