// Package extender asks other processes about scheduling decisions over HTTP, as KubeSchedulerConfiguration's
// extenders say (k8s.io/kube-scheduler/extender/v1).
package extender

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	restclient "k8s.io/client-go/rest"
	configv1 "k8s.io/kube-scheduler/config/v1"
	extenderv1 "k8s.io/kube-scheduler/extender/v1"
	fwk "k8s.io/kube-scheduler/framework"
)

// defaultTimeout is upstream's.
const defaultTimeout = 5 * time.Second

// maxAnswer limits what an extender can make this process hold: all nodes of a large cluster fit in it.
const maxAnswer = 128 << 20

// Name stands for all extenders among the plugins that rejected a pod.
const Name = "Extender"

// HTTP is an extender behind a URL.
type HTTP struct {
	config  configv1.Extender
	client  *http.Client
	managed map[v1.ResourceName]bool
}

var _ fwk.Extender = (*HTTP)(nil)

// New returns an extender. Errors name the field.
func New(c configv1.Extender) (*HTTP, error) {
	if c.URLPrefix == "" {
		return nil, errors.New("urlPrefix: Required value")
	}
	if c.PrioritizeVerb != "" && c.Weight <= 0 {
		return nil, fmt.Errorf("weight: Invalid value: %d: must have a positive weight applied to it", c.Weight)
	}
	e := &HTTP{config: c, managed: map[v1.ResourceName]bool{}}
	for i, r := range c.ManagedResources {
		if !strings.Contains(r.Name, "/") || e.managed[v1.ResourceName(r.Name)] {
			return nil, fmt.Errorf("managedResources[%d].name: Invalid value: %q: must be an extended resource, and no other entry's", i, r.Name)
		}
		e.managed[v1.ResourceName(r.Name)] = true
	}
	tls := restclient.TLSClientConfig{}
	if t := c.TLSConfig; t != nil {
		tls = restclient.TLSClientConfig{
			Insecure: t.Insecure, ServerName: t.ServerName, CertFile: t.CertFile, KeyFile: t.KeyFile, CAFile: t.CAFile,
			CertData: t.CertData, KeyData: t.KeyData, CAData: t.CAData,
		}
	}
	// As upstream: TLS without a CA is for extenders whose certificate nobody can check.
	if c.EnableHTTPS && len(tls.CAFile) == 0 && len(tls.CAData) == 0 {
		tls.Insecure = true
	}
	transport, err := restclient.TransportFor(&restclient.Config{TLSClientConfig: tls})
	if err != nil {
		return nil, fmt.Errorf("tlsConfig: %w", err)
	}
	timeout := c.HTTPTimeout.Duration
	if timeout <= 0 {
		timeout = defaultTimeout
	}
	e.client = &http.Client{Transport: transport, Timeout: timeout}
	return e, nil
}

// Ignored returns the resources that the scheduler itself leaves to the extender.
func (e *HTTP) Ignored() []string {
	var out []string
	for _, r := range e.config.ManagedResources {
		if r.IgnoredByScheduler {
			out = append(out, r.Name)
		}
	}
	return out
}

// Name returns the URL.
func (e *HTTP) Name() string { return e.config.URLPrefix }

// IsIgnorable reports whether scheduling goes on without the extender when it fails.
func (e *HTTP) IsIgnorable() bool { return e.config.Ignorable }

// IsFilter reports whether it filters nodes.
func (e *HTTP) IsFilter() bool { return e.config.FilterVerb != "" }

// IsPrioritizer reports whether it scores nodes.
func (e *HTTP) IsPrioritizer() bool { return e.config.PrioritizeVerb != "" }

// IsBinder reports whether it binds pods.
func (e *HTTP) IsBinder() bool { return e.config.BindVerb != "" }

// SupportsPreemption reports whether it wants to be asked about victims.
func (e *HTTP) SupportsPreemption() bool { return e.config.PreemptVerb != "" }

// IsInterested reports whether the pod asks for a resource that the extender manages; without any, all do.
func (e *HTTP) IsInterested(pod *v1.Pod) bool {
	if len(e.managed) == 0 {
		return true
	}
	asks := func(list []v1.Container) bool {
		return slices.ContainsFunc(list, func(c v1.Container) bool {
			for _, r := range []v1.ResourceList{c.Resources.Requests, c.Resources.Limits} {
				for name := range r {
					if e.managed[name] {
						return true
					}
				}
			}
			return false
		})
	}
	return asks(pod.Spec.Containers) || asks(pod.Spec.InitContainers)
}

func (e *HTTP) args(pod *v1.Pod, nodes []fwk.NodeInfo) *extenderv1.ExtenderArgs {
	args := &extenderv1.ExtenderArgs{Pod: pod}
	if e.config.NodeCacheCapable {
		names := make([]string, 0, len(nodes))
		for _, n := range nodes {
			names = append(names, n.Node().Name)
		}
		args.NodeNames = &names
		return args
	}
	args.Nodes = &v1.NodeList{}
	for _, n := range nodes {
		args.Nodes.Items = append(args.Nodes.Items, *n.Node())
	}
	return args
}

// Filter returns the nodes that the extender leaves, and why it did not the others: those of the second map
// would not fit without other pods, either.
func (e *HTTP) Filter(pod *v1.Pod, nodes []fwk.NodeInfo) ([]fwk.NodeInfo, extenderv1.FailedNodesMap, extenderv1.FailedNodesMap, error) {
	var result extenderv1.ExtenderFilterResult
	if err := e.post(e.config.FilterVerb, e.args(pod, nodes), &result); err != nil {
		return nil, nil, nil, err
	}
	if result.Error != "" {
		return nil, nil, nil, errors.New(result.Error)
	}
	var names []string
	switch {
	case e.config.NodeCacheCapable && result.NodeNames != nil:
		names = *result.NodeNames
	case result.Nodes != nil:
		for i := range result.Nodes.Items {
			names = append(names, result.Nodes.Items[i].Name)
		}
	}
	left := make([]fwk.NodeInfo, 0, len(names))
	for _, name := range names {
		i := slices.IndexFunc(nodes, func(n fwk.NodeInfo) bool { return n.Node().Name == name })
		if i < 0 {
			return nil, nil, nil, fmt.Errorf("extender %q claims a filtered node %q which is not found in the input node list", e.Name(), name)
		}
		left = append(left, nodes[i])
	}
	return left, result.FailedNodes, result.FailedAndUnresolvableNodes, nil
}

// Prioritize returns the extender's scores, from 0 to 10, and their weight.
func (e *HTTP) Prioritize(pod *v1.Pod, nodes []fwk.NodeInfo) (*extenderv1.HostPriorityList, int64, error) {
	var result extenderv1.HostPriorityList
	if err := e.post(e.config.PrioritizeVerb, e.args(pod, nodes), &result); err != nil {
		return nil, 0, err
	}
	return &result, e.config.Weight, nil
}

// Bind lets the extender bind the pod.
func (e *HTTP) Bind(b *v1.Binding) error {
	var result extenderv1.ExtenderBindingResult
	args := &extenderv1.ExtenderBindingArgs{PodName: b.Name, PodNamespace: b.Namespace, PodUID: b.UID, Node: b.Target.Name}
	if err := e.post(e.config.BindVerb, args, &result); err != nil {
		return err
	}
	if result.Error != "" {
		return errors.New(result.Error)
	}
	return nil
}

// ProcessPreemption returns the nodes, with their victims, on which the extender would let the pod preempt.
func (e *HTTP) ProcessPreemption(pod *v1.Pod, victims map[string]*extenderv1.Victims, nodes fwk.NodeInfoLister) (map[string]*extenderv1.Victims, error) {
	args := &extenderv1.ExtenderPreemptionArgs{Pod: pod}
	if e.config.NodeCacheCapable {
		args.NodeNameToMetaVictims = map[string]*extenderv1.MetaVictims{}
		for node, v := range victims {
			m := &extenderv1.MetaVictims{NumPDBViolations: v.NumPDBViolations}
			for _, p := range v.Pods {
				m.Pods = append(m.Pods, &extenderv1.MetaPod{UID: string(p.UID)})
			}
			args.NodeNameToMetaVictims[node] = m
		}
	} else {
		args.NodeNameToVictims = victims
	}
	var result extenderv1.ExtenderPreemptionResult
	if err := e.post(e.config.PreemptVerb, args, &result); err != nil {
		return nil, err
	}
	out := map[string]*extenderv1.Victims{}
	for node, m := range result.NodeNameToMetaVictims {
		n, err := nodes.Get(node)
		if err != nil {
			return nil, fmt.Errorf("extender %s: %w", e.Name(), err)
		}
		v := &extenderv1.Victims{NumPDBViolations: m.NumPDBViolations}
		for _, p := range m.Pods {
			i := slices.IndexFunc(n.GetPods(), func(pi fwk.PodInfo) bool { return string(pi.GetPod().UID) == p.UID })
			if i < 0 {
				return nil, fmt.Errorf("extender: %v claims to preempt pod (UID: %v) on node: %v, but the pod is not found on that node", e.Name(), p.UID, node)
			}
			v.Pods = append(v.Pods, n.GetPods()[i].GetPod())
		}
		out[node] = v
	}
	return out, nil
}

func (e *HTTP) post(verb string, args, result any) error {
	body, err := json.Marshal(args)
	if err != nil {
		return err
	}
	url := strings.TrimRight(e.config.URLPrefix, "/") + "/" + verb
	req, err := http.NewRequestWithContext(context.Background(), http.MethodPost, url, bytes.NewReader(body)) // the client has a timeout
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := e.client.Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("failed %v with extender at URL %v, code %v", verb, url, resp.StatusCode)
	}
	if err := json.NewDecoder(io.LimitReader(resp.Body, maxAnswer)).Decode(result); err != nil {
		return fmt.Errorf("the answer of extender %s: %w", url, err)
	}
	return nil
}
