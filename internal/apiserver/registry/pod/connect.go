package pod

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/proxy"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"
	translator "k8s.io/apiserver/pkg/util/proxy"
	"k8s.io/streaming/pkg/httpstream/wsstream"

	"wherry.dev/internal/api/pods"
	"wherry.dev/internal/apiserver/registry/node"
)

// getter reads pods.
type getter interface {
	Get(ctx context.Context, name string, opts *metav1.GetOptions) (runtime.Object, error)
}

// kubelets finds the kubelet of a node.
type kubelets interface {
	Kubelet(ctx context.Context, name string) (node.Kubelet, error)
}

// Connect is an endpoint that connects a client to a pod's kubelet: exec, attach or portforward.
// SPDY passes through; what newer clients speak over WebSockets is translated to SPDY, which every
// kubelet knows.
type Connect struct {
	verb     string
	pods     getter
	kubelets kubelets
	may      authorizer.Authorizer
	options  func() runtime.Object
}

var _ rest.Connecter = (*Connect)(nil)

// NewConnects returns the endpoints, by name.
func NewConnects(pods getter, kubelets kubelets, may authorizer.Authorizer) map[string]rest.Storage {
	endpoint := func(verb string, options func() runtime.Object) *Connect {
		return &Connect{verb: verb, pods: pods, kubelets: kubelets, may: may, options: options}
	}
	return map[string]rest.Storage{
		"exec":        endpoint("exec", func() runtime.Object { return &corev1.PodExecOptions{} }),
		"attach":      endpoint("attach", func() runtime.Object { return &corev1.PodAttachOptions{} }),
		"portforward": endpoint("portForward", func() runtime.Object { return &corev1.PodPortForwardOptions{} }),
	}
}

// New implements rest.Storage.
func (c *Connect) New() runtime.Object { return c.options() }

// Destroy implements rest.Storage.
func (c *Connect) Destroy() {}

// ConnectMethods implements rest.Connecter. WebSockets come as GET.
func (c *Connect) ConnectMethods() []string { return []string{"GET", "POST"} }

// NewConnectOptions implements rest.Connecter.
func (c *Connect) NewConnectOptions() (runtime.Object, bool, string) { return c.options(), false, "" }

// Connect implements rest.Connecter.
func (c *Connect) Connect(ctx context.Context, name string, opts runtime.Object, responder rest.Responder) (http.Handler, error) {
	// A WebSocket starts with GET, yet it runs a command, so it needs the right to create.
	if err := mayCreate(ctx, c.may); err != nil {
		return nil, err
	}
	location, dial, err := c.locate(ctx, name, opts)
	if err != nil {
		return nil, err
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		conn, err := dial(r.Context())
		if err != nil {
			responder.Error(fmt.Errorf("error dialing backend: %w", err))
			return
		}
		defer func() { _ = conn.Close() }() // already closed if it was upgraded
		over(location, conn, opts, responder).ServeHTTP(w, r)
	}), nil
}

// over returns a handler that serves streams on a connection to the kubelet.
func over(location *url.URL, conn net.Conn, opts runtime.Object, responder rest.Responder) http.Handler {
	plain := *location
	plain.Scheme = "http" // the connection has TLS already
	transport := &http.Transport{DialContext: func(context.Context, string, string) (net.Conn, error) { return conn, nil }}
	handler := http.Handler(proxy.NewUpgradeAwareHandler(&plain, transport, false, true, proxy.NewErrorResponder(responder)))
	if streams, ok := streamsOf(opts); ok {
		translated := translator.NewStreamTranslatorHandler(&plain, transport, 0, streams)
		return translator.NewTranslatingHandler(handler, translated, wsstream.IsWebSocketRequestWithStreamCloseProtocol)
	}
	tunnel := translator.NewTunnelingHandler(handler)
	return translator.NewTranslatingHandler(handler, tunnel, wsstream.IsWebSocketRequestWithTunnelingProtocol)
}

// dialer opens a connection to a kubelet.
type dialer func(ctx context.Context) (net.Conn, error)

func (c *Connect) locate(ctx context.Context, name string, opts runtime.Object) (*url.URL, dialer, error) {
	p, err := getPod(ctx, c.pods, name)
	if err != nil {
		return nil, nil, err
	}
	path := "/" + c.verb + "/" + p.Namespace + "/" + p.Name
	params := url.Values{}
	switch o := opts.(type) {
	case *corev1.PodExecOptions:
		if path, err = withContainer(path, o.Container, p); err != nil {
			return nil, nil, err
		}
		streamParams(params, o.Stdin, o.Stdout, o.Stderr, o.TTY)
		params["command"] = o.Command
	case *corev1.PodAttachOptions:
		if path, err = withContainer(path, o.Container, p); err != nil {
			return nil, nil, err
		}
		streamParams(params, o.Stdin, o.Stdout, o.Stderr, o.TTY)
	case *corev1.PodPortForwardOptions:
		if len(o.Ports) > 0 {
			ports := make([]string, len(o.Ports))
			for i, port := range o.Ports {
				ports[i] = strconv.Itoa(int(port))
			}
			params.Set("port", strings.Join(ports, ","))
		}
	default:
		return nil, nil, fmt.Errorf("invalid options object: %T", opts)
	}
	if p.Spec.NodeName == "" {
		return nil, nil, apierrors.NewBadRequest(fmt.Sprintf("pod %s does not have a host assigned", name))
	}
	kubelet, err := c.kubelets.Kubelet(ctx, p.Spec.NodeName)
	if err != nil {
		return nil, nil, err
	}
	location := kubelet.URL
	location.Path, location.RawQuery = path, params.Encode()
	return &location, kubelet.Dial, nil
}

func withContainer(path, container string, p *corev1.Pod) (string, error) {
	container, err := pickContainer(container, p)
	return path + "/" + container, err
}

func streamParams(params url.Values, stdin, stdout, stderr, tty bool) {
	for name, on := range map[string]bool{"input": stdin, "output": stdout, "error": stderr, "tty": tty} {
		if on {
			params.Set(name, "1")
		}
	}
}

func streamsOf(opts runtime.Object) (translator.Options, bool) {
	switch o := opts.(type) {
	case *corev1.PodExecOptions:
		return translator.Options{Stdin: o.Stdin, Stdout: o.Stdout, Stderr: o.Stderr, Tty: o.TTY}, true
	case *corev1.PodAttachOptions:
		return translator.Options{Stdin: o.Stdin, Stdout: o.Stdout, Stderr: o.Stderr, Tty: o.TTY}, true
	}
	return translator.Options{}, false
}

func getPod(ctx context.Context, pods getter, name string) (*corev1.Pod, error) {
	obj, err := pods.Get(ctx, name, &metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	p, ok := obj.(*corev1.Pod)
	if !ok {
		return nil, fmt.Errorf("pod %s: unexpected %T", name, obj)
	}
	return p, nil
}

// pickContainer returns the container that the client means: the named one, or the only one besides
// init and ephemeral containers.
func pickContainer(name string, p *corev1.Pod) (string, error) {
	switch {
	case name != "" && pods.FindContainer(p, name) != nil:
		return name, nil
	case name != "":
		return "", apierrors.NewBadRequest(fmt.Sprintf("container %s is not valid for pod %s", name, p.Name))
	case len(p.Spec.Containers) == 1:
		return p.Spec.Containers[0].Name, nil
	case len(p.Spec.Containers) == 0:
		return "", apierrors.NewBadRequest(fmt.Sprintf("a container name must be specified for pod %s", p.Name))
	}
	var all []string
	for c := range pods.AllContainers(&p.Spec) {
		all = append(all, c.Name)
	}
	return "", apierrors.NewBadRequest(fmt.Sprintf("a container name must be specified for pod %s, choose one of: %s", p.Name, all))
}

// mayCreate returns an error unless the user may create the subresource, whatever the method was.
func mayCreate(ctx context.Context, may authorizer.Authorizer) error {
	info, ok := genericapirequest.RequestInfoFrom(ctx)
	if !ok || info.Verb == "create" {
		return nil
	}
	u, ok := genericapirequest.UserFrom(ctx)
	if !ok {
		return apierrors.NewUnauthorized("no user present on request")
	}
	attrs := authorizer.AttributesRecord{
		User: u, Verb: "create", Namespace: info.Namespace, APIGroup: info.APIGroup, APIVersion: info.APIVersion,
		Resource: info.Resource, Subresource: info.Subresource, Name: info.Name, ResourceRequest: true, Path: info.Path,
	}
	decision, reason, err := may.Authorize(ctx, attrs)
	if err != nil {
		return apierrors.NewInternalError(err)
	}
	if decision == authorizer.DecisionAllow {
		return nil
	}
	if reason == "" {
		reason = fmt.Sprintf("user %q cannot create resource %q in API group %q in the namespace %q",
			u.GetName(), info.Resource+"/"+info.Subresource, info.APIGroup, info.Namespace)
	}
	return apierrors.NewForbidden(corev1.Resource(info.Resource+"/"+info.Subresource), info.Name, fmt.Errorf("%s", reason))
}
