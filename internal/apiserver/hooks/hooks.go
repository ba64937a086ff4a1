// Package hooks runs what users add to admission: webhooks and policies in CEL. The plugins are
// k8s.io/apiserver's. Here is what they need around them, and when they are made: each with the first
// object that configures it, because its compilers and loops cost megabytes and ticks that a cluster
// without webhooks and policies need not have.
package hooks

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/trace/noop"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/admission/initializer"
	policymutating "k8s.io/apiserver/pkg/admission/plugin/policy/mutating"
	policyvalidating "k8s.io/apiserver/pkg/admission/plugin/policy/validating"
	webhookinit "k8s.io/apiserver/pkg/admission/plugin/webhook/initializer"
	"k8s.io/apiserver/pkg/admission/plugin/webhook/mutating"
	"k8s.io/apiserver/pkg/admission/plugin/webhook/validating"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/apiserver/pkg/util/webhook"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/component-base/compatibility"
	"k8s.io/klog/v2"
)

// Config is what the plugins need. All of it is required.
type Config struct {
	// Self configures a client of this server with all rights: for the parameters of policies, for
	// schemas, and for webhooks behind default/kubernetes.
	Self       *rest.Config
	Mapper     meta.RESTMapper
	Authorizer authorizer.Authorizer
	Services   webhook.ServiceResolver
	Version    compatibility.EffectiveVersion
	// Stored reads a resource from storage. The objects are shared.
	Stored func(schema.GroupResource) cache.ListerWatcher
	// Files decodes objects that are in files of the server, Default fills them in, and Check says what is wrong with one.
	Files   runtime.Decoder
	Default func(runtime.Object)
	Check   func(runtime.Object) field.ErrorList
	// ID names this server in the metrics of such files.
	ID string
	// Exempt reports whether a request passes without hooks.
	Exempt func(admission.Attributes) bool
}

// Hooks are the plugins. Create them with New.
type Hooks struct {
	cfg       Config
	client    kubernetes.Interface
	dynamic   dynamic.Interface
	informers informers.SharedInformerFactory
	plugins   []*plugin
	synced    chan struct{}
}

// New returns the plugins. They refuse requests until Run has read what configures them.
func New(cfg Config) (*Hooks, error) {
	h := &Hooks{cfg: cfg, synced: make(chan struct{})}
	var err error
	if h.client, err = kubernetes.NewForConfig(cfg.Self); err != nil {
		return nil, err
	}
	if h.dynamic, err = dynamic.NewForConfig(cfg.Self); err != nil {
		return nil, err
	}
	h.informers = informers.NewSharedInformerFactory(h.client, 0)
	h.follow(&corev1.Namespace{}, corev1.Resource("namespaces"))
	for _, d := range definitions {
		p := &plugin{definition: d, hooks: h, wanted: make(chan struct{}, 1)}
		for resource, sample := range d.kinds {
			informer := h.follow(sample, admissionv1.Resource(resource))
			p.kinds = append(p.kinds, informer)
			if _, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: func(any) { p.want() }}); err != nil {
				return nil, fmt.Errorf("admission plugin %s: %w", d.name, err)
			}
		}
		h.plugins = append(h.plugins, p)
	}
	return h, nil
}

// follow makes the informer of a kind read from storage. Whoever asks the factory for it gets this one.
func (h *Hooks) follow(sample runtime.Object, resource schema.GroupResource) cache.SharedIndexInformer {
	return h.informers.InformerFor(sample, func(kubernetes.Interface, time.Duration) cache.SharedIndexInformer {
		return cache.NewSharedIndexInformer(h.cfg.Stored(resource), sample, 0, cache.Indexers{})
	})
}

// Plugin returns a plugin, which reads its configuration from config, if that is not nil. Only these
// have an effect.
func (h *Hooks) Plugin(name string, config io.Reader) (admission.Interface, error) {
	i := slices.IndexFunc(h.plugins, func(p *plugin) bool { return p.name == name })
	if i < 0 {
		return nil, fmt.Errorf("there is no admission plugin %q", name)
	}
	p := h.plugins[i]
	if config != nil {
		var err error
		if p.config, err = io.ReadAll(config); err != nil {
			return nil, fmt.Errorf("configuration of the admission plugin %s: %w", name, err)
		}
		if _, err := p.make(bytes.NewReader(p.config)); err != nil {
			return nil, fmt.Errorf("configuration of the admission plugin %s: %w", name, err)
		}
		if p.static, err = staticDir(p.config); err == nil && p.static != "" {
			err = h.tryLoad(name, p.static) // what is wrong ends the start, before anything is served
		}
		if err != nil {
			return nil, fmt.Errorf("configuration of the admission plugin %s: %w", name, err)
		}
	}
	p.used = true
	return p.forChain(), nil
}

// Run keeps up with what configures the plugins, until ctx ends. serving is closed once this server
// answers, because plugins read from it.
func (h *Hooks) Run(ctx context.Context, serving <-chan struct{}) error {
	defer h.informers.Shutdown()
	var all sync.WaitGroup
	defer all.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // before the wait: an error of one plugin ends the others
	h.informers.StartWithContext(ctx)
	if !h.wait(ctx, serving) {
		return nil
	}
	for _, p := range h.plugins {
		if !p.used {
			continue
		}
		if err := p.makeIfWanted(ctx); err != nil {
			return err
		}
		all.Go(func() { p.keep(ctx) })
	}
	close(h.synced)
	<-ctx.Done()
	return nil
}

// wait waits for all informers, and until this server answers.
func (h *Hooks) wait(ctx context.Context, serving <-chan struct{}) bool {
	var synced []cache.DoneChecker
	for _, p := range h.plugins {
		for _, informer := range p.kinds {
			synced = append(synced, informer.HasSyncedChecker())
		}
	}
	namespaces := h.informers.Core().V1().Namespaces().Informer()
	if !cache.WaitFor(ctx, "", append(synced, namespaces.HasSyncedChecker())...) {
		return false
	}
	select {
	case <-serving:
		return true
	case <-ctx.Done():
		return false
	}
}

// definition is a plugin of the library.
type definition struct {
	name  string
	kinds map[string]runtime.Object // what configures it, by resource
	// mutates says that the plugin changes objects; the others judge them.
	mutates bool
	make    func(config io.Reader) (admission.Interface, error)
}

var definitions = []definition{
	{
		policymutating.PluginName, map[string]runtime.Object{
			"mutatingadmissionpolicies":       &admissionv1.MutatingAdmissionPolicy{},
			"mutatingadmissionpolicybindings": &admissionv1.MutatingAdmissionPolicyBinding{},
		}, true, func(config io.Reader) (admission.Interface, error) { return policymutating.NewPlugin(config) },
	},
	{
		mutating.PluginName, map[string]runtime.Object{"mutatingwebhookconfigurations": &admissionv1.MutatingWebhookConfiguration{}},
		true, func(config io.Reader) (admission.Interface, error) { return mutating.NewMutatingWebhook(config) },
	},
	{
		policyvalidating.PluginName, map[string]runtime.Object{
			"validatingadmissionpolicies":       &admissionv1.ValidatingAdmissionPolicy{},
			"validatingadmissionpolicybindings": &admissionv1.ValidatingAdmissionPolicyBinding{},
		}, false, func(config io.Reader) (admission.Interface, error) { return policyvalidating.NewPlugin(config) },
	},
	{
		validating.PluginName, map[string]runtime.Object{"validatingwebhookconfigurations": &admissionv1.ValidatingWebhookConfiguration{}},
		false, func(config io.Reader) (admission.Interface, error) {
			return validating.NewValidatingAdmissionWebhook(config)
		},
	},
}

// plugin stands for a plugin of the library, which it makes when something configures it.
type plugin struct {
	definition
	hooks  *Hooks
	kinds  []cache.SharedIndexInformer
	wanted chan struct{} // capacity 1
	made   atomic.Pointer[admission.Interface]
	// Set while the chain is built.
	used   bool
	config []byte
	static string // a folder with objects, "" for none
}

func (p *plugin) want() {
	select {
	case p.wanted <- struct{}{}:
	default:
	}
}

// keep makes the plugin when something configures it.
func (p *plugin) keep(ctx context.Context) {
	for p.made.Load() == nil {
		select {
		case <-p.wanted:
		case <-ctx.Done():
			return
		}
		if err := p.makeIfWanted(ctx); err != nil {
			klog.FromContext(ctx).Error(err, "Webhooks or policies have no effect")
			return
		}
	}
}

// configured reports whether there is anything that configures the plugin. It asks the informers' stores, from which
// the plugin itself reads: events come a moment later, and nothing may pass in between.
func (p *plugin) configured() bool {
	return p.static != "" || slices.ContainsFunc(p.kinds, func(i cache.SharedIndexInformer) bool { return len(i.GetStore().ListKeys()) > 0 })
}

func (p *plugin) makeIfWanted(ctx context.Context) error {
	if !p.configured() {
		return nil
	}
	var config io.Reader
	if p.config != nil {
		config = bytes.NewReader(p.config)
	}
	made, err := p.make(config)
	if err != nil {
		return fmt.Errorf("admission plugin %s: %w", p.name, err)
	}
	p.hooks.initialize(ctx, made)
	if err := admission.ValidateInitialization(made); err != nil {
		return fmt.Errorf("admission plugin %s: %w", p.name, err)
	}
	if w, ok := made.(interface{ WaitForReady() bool }); ok && !w.WaitForReady() {
		klog.FromContext(ctx).Info("An admission plugin is slow to start; requests wait for it", "plugin", p.name)
	}
	p.made.Store(&made)
	return nil
}

// reviews are requests that hooks must not touch: a cluster whose hooks fail must still know who may do
// what.
var reviews = []schema.GroupResource{
	{Group: "authentication.k8s.io", Resource: "selfsubjectreviews"},
	{Group: "authentication.k8s.io", Resource: "tokenreviews"},
	{Group: "authorization.k8s.io", Resource: "localsubjectaccessreviews"},
	{Group: "authorization.k8s.io", Resource: "selfsubjectaccessreviews"},
	{Group: "authorization.k8s.io", Resource: "selfsubjectrulesreviews"},
	{Group: "authorization.k8s.io", Resource: "subjectaccessreviews"},
}

func (h *Hooks) initialize(ctx context.Context, made admission.Interface) {
	cfg := &h.cfg
	initializer.New(h.client, h.dynamic, h.informers, cfg.Authorizer, utilfeature.DefaultFeatureGate, cfg.Version, ctx.Done(), cfg.Mapper).Initialize(made)
	auth := webhook.NewDefaultAuthenticationInfoResolverWrapper(nil, nil, cfg.Self, noop.NewTracerProvider())
	webhookinit.NewPluginInitializer(auth, cfg.Services).Initialize(made)
	if wants, ok := made.(initializer.WantsAPIServerID); ok {
		wants.SetAPIServerID(cfg.ID)
	}
	if wants, ok := made.(initializer.WantsManifestLoaders); ok {
		wants.SetManifestLoaders(h.loaders())
	}
	if wants, ok := made.(initializer.WantsExcludedAdmissionResources); ok {
		wants.SetExcludedAdmissionResources(reviews)
	}
}

// patience is how long a request waits for the plugins, as in the library.
const patience = 10 * time.Second

// ready returns the plugin if it has anything to do with a request.
func (p *plugin) ready(ctx context.Context, a admission.Attributes) (admission.Interface, error) {
	if p.hooks.cfg.Exempt(a) {
		return nil, nil
	}
	select {
	case <-p.hooks.synced:
	default:
		if err := p.hooks.await(ctx); err != nil {
			return nil, err
		}
	}
	// A plugin that nothing configures any more would copy every object, in case that it had changed it.
	made := p.made.Load()
	if made == nil || !p.configured() || !(*made).Handles(a.GetOperation()) {
		return nil, nil
	}
	return *made, nil
}

func (h *Hooks) await(ctx context.Context) error {
	late := time.NewTimer(patience)
	defer late.Stop()
	select {
	case <-h.synced:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-late.C:
		return apierrors.NewServiceUnavailable("not yet ready to handle request: webhooks and policies have not been read")
	}
}

// forChain returns the plugin as one that either changes or judges objects.
func (p *plugin) forChain() admission.Interface {
	if p.mutates {
		return mutator{p}
	}
	return validator{p}
}

// Handles implements admission.Interface. What the plugin itself handles is known once it is made.
func (p *plugin) Handles(admission.Operation) bool { return true }

type mutator struct{ *plugin }

var _ admission.MutationInterface = mutator{}

// Admit implements admission.MutationInterface.
func (m mutator) Admit(ctx context.Context, a admission.Attributes, o admission.ObjectInterfaces) error {
	made, err := m.ready(ctx, a)
	if err != nil || made == nil {
		return err
	}
	return made.(admission.MutationInterface).Admit(ctx, a, o)
}

type validator struct{ *plugin }

var _ admission.ValidationInterface = validator{}

// Validate implements admission.ValidationInterface.
func (v validator) Validate(ctx context.Context, a admission.Attributes, o admission.ObjectInterfaces) error {
	made, err := v.ready(ctx, a)
	if err != nil || made == nil {
		return err
	}
	return made.(admission.ValidationInterface).Validate(ctx, a, o)
}
