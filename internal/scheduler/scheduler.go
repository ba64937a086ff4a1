package scheduler

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/informers"
	resourceinformers "k8s.io/client-go/informers/resource/v1"
	clientset "k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	schedulinglisters "k8s.io/client-go/listers/scheduling/v1beta1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/events"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"

	"wherry.dev/internal/api/pods"
	schedcache "wherry.dev/internal/scheduler/cache"
	"wherry.dev/internal/scheduler/extender"
	"wherry.dev/internal/scheduler/framework"
	"wherry.dev/internal/scheduler/groups"
	"wherry.dev/internal/scheduler/plugins/devices"
	"wherry.dev/internal/scheduler/queue"
)

// Scheduler places pods. Create one with New, and Run it once.
type Scheduler struct {
	client   clientset.Interface
	shared   *framework.Shared
	alone    bool // nobody else reads from the informers
	profiles map[string]*framework.Profile
	hints    map[string]map[string][]fwk.ClusterEventWithHint // by profile and plugin
	heard    sync.Map                                         // the listeners of events that have happened
	queue    *queue.Queue
	statuses *statusWriter[*statusUpdate]
	// groupStatuses has those of pod groups.
	groupStatuses *statusWriter[*groupUpdate]
	cache         *schedcache.Cache
	groups        *groups.Groups
	// grouped means that the pods of a pod group are scheduled together.
	grouped bool
	// placing means that plugins may say to which nodes a group is limited.
	placing bool
	// cycle is held during a scheduling cycle, and by who looks at its snapshot between two.
	cycle     sync.Mutex
	snapshot  *schedcache.Snapshot
	choices   choices
	recorders map[string]events.EventRecorderLogger
	events    events.EventBroadcaster
	// percentage is the configured percentageOfNodesToScore.
	percentage int32
	found      []*fwk.Status  // of the nodes of one search
	feasible   []fwk.NodeInfo // room for what one search finds
	first      int            // the node with which the next search begins
	next       int            // the position of the round-robin among equally good nodes
	bindings   sync.WaitGroup
	binding    atomic.Int64     // how many of these there are
	hinted     framework.Sample // of calls of plugins' hints
	// tainting has the DeviceTaintRules; nil if nobody asks for devices, or if they are not served, which askServed
	// says is still to be asked.
	tainting  resourceinformers.DeviceTaintRuleInformer
	askServed bool
	ready     chan struct{}
}

// New returns a scheduler. It talks to the API server only once it runs.
func New(ctx context.Context, client clientset.Interface, cfg Config) (*Scheduler, error) {
	s := &Scheduler{
		client: client, hints: map[string]map[string][]fwk.ClusterEventWithHint{},
		cache: schedcache.New(klog.FromContext(ctx)), grouped: cfg.PodGroups, placing: cfg.Topology,
		recorders:  map[string]events.EventRecorderLogger{},
		events:     events.NewBroadcaster(&events.EventSinkImpl{Interface: client.EventsV1()}),
		percentage: cfg.PercentageOfNodesToScore, ready: make(chan struct{}),
	}
	s.statuses, s.groupStatuses = newStatusWriter(s.report), newStatusWriter(s.writeGroup)
	s.queue = queue.New(queue.Config{
		Less: s.less, PreEnqueue: s.preEnqueue, Listeners: s.listeners, Hints: s.hint,
		Shape: s.hintShape, Helps: s.helps,
		InitialBackoff: cfg.InitialBackoff, MaxBackoff: cfg.MaxBackoff, Placed: s.cache.Has,
	})
	for _, p := range cfg.Profiles {
		s.recorders[p.SchedulerName] = s.events.NewRecorder(scheme.Scheme, p.SchedulerName)
	}
	factory := cfg.Informers
	if s.alone = factory == nil; s.alone {
		factory = informers.NewSharedInformerFactoryWithOptions(client, 0, informers.WithTransform(trim))
	}
	var podGroups schedulinglisters.PodGroupLister
	if s.grouped {
		podGroups = factory.Scheduling().V1beta1().PodGroups().Lister()
	}
	s.groups = groups.New(podGroups)
	s.snapshot = schedcache.NewSnapshot(s.groups)
	s.shared = &framework.Shared{
		Client: client, KubeConfig: cfg.RESTConfig, Informers: factory, Groups: s.groups,
		Snapshot: s.snapshot, Nominator: s.queue.Nominator(), Activator: s.queue,
		Waiting: framework.NewWaitingPods(), Parallel: framework.NewParallelizer(cfg.Parallelism),
		Extenders: cfg.Extenders, MemoNodes: cfg.MemoNodes, Taken: s.taken,
		Recorder:   func(profile string) events.EventRecorderLogger { return s.recorders[profile] },
		NewDevices: func() (fwk.SharedDRAManager, error) { return devices.NewManager(factory) },
	}
	var err error
	if s.profiles, err = cfg.profiles(ctx, s.shared); err != nil {
		return nil, err
	}
	for name, p := range s.profiles {
		if s.hints[name], err = p.Events(ctx); err != nil {
			return nil, err
		}
		if len(s.shared.Extenders) > 0 { // nobody knows what helps them
			s.hints[name][extender.Name] = []fwk.ClusterEventWithHint{{Event: fwk.ClusterEvent{Resource: fwk.WildCard, ActionType: fwk.All}}}
		}
	}
	s.inform(factory)
	if s.askServed = cfg.Serves == nil; !s.askServed && cfg.Serves(taintRules) {
		s.tainting = factory.Resource().V1().DeviceTaintRules()
		s.tainting.Informer()
	}
	return s, nil
}

// taken is cache.Taken of what the pod cannot preempt.
func (s *Scheduler) taken(node string, by *v1.Pod) (has, taken fwk.Resource, pods int, known bool) {
	all := s.groups.PodGroups()
	priority := groups.Priority(all, by)
	return s.cache.Taken(node, func(pod *v1.Pod) bool { return groups.Priority(all, pod) >= priority })
}

// less orders the queue, which all profiles sort alike.
func (s *Scheduler) less(a, b fwk.QueuedEntityInfo) bool {
	for _, p := range s.profiles {
		return p.Less(a, b)
	}
	return false
}

// Ready returns a channel that is closed once the scheduler has seen all pods and nodes.
func (s *Scheduler) Ready() <-chan struct{} { return s.ready }

// Run schedules until ctx ends. It returns when its last binding is done.
func (s *Scheduler) Run(ctx context.Context) error {
	if err := s.events.StartRecordingToSinkWithContext(ctx); err != nil {
		return fmt.Errorf("record events: %w", err)
	}
	defer s.events.Shutdown()
	if !s.findTaintRules(ctx) {
		return nil // told to stop before it began
	}
	synced, err := s.watch(ctx, s.shared.Informers)
	if err != nil {
		return err
	}
	if s.alone {
		s.shared.Informers.Start(ctx.Done())
		defer s.shared.Informers.Shutdown()
	}
	// What plugins have asked for counts, too: they must not decide on half of it.
	for kind, ok := range s.shared.Informers.WaitForCacheSync(ctx.Done()) {
		if !ok && ctx.Err() == nil {
			return fmt.Errorf("the scheduler cannot list %s", kind)
		}
	}
	quiet := klog.NewContext(ctx, klog.FromContext(ctx).V(2)) // it has a line for every kind
	if !cache.WaitFor(quiet, "scheduler", synced...) {
		return nil // told to stop before it began
	}
	running.Store(s)
	defer running.CompareAndSwap(s, nil)
	close(s.ready)
	for {
		info, err := s.queue.Pop(ctx)
		if err != nil {
			s.bindings.Wait()
			s.statuses.wait()
			s.groupStatuses.wait()
			return nil
		}
		if name, ok := pods.Group(info.GetPod()); ok && s.grouped {
			s.scheduleGroup(ctx, info, name)
		} else {
			s.scheduleOne(ctx, info)
		}
	}
}

// trim drops what the scheduler never reads, which is most of a small pod.
func trim(obj any) (any, error) {
	if m, err := meta.Accessor(obj); err == nil {
		m.SetManagedFields(nil)
	}
	return obj, nil
}

func (s *Scheduler) recorder(ctx context.Context, p *framework.Profile) events.EventRecorderLogger {
	return s.recorders[p.Name].WithLogger(klog.FromContext(ctx))
}

func (s *Scheduler) preEnqueue(ctx context.Context, pod *v1.Pod) *fwk.Status {
	return s.profiles[pod.Spec.SchedulerName].PreEnqueue(ctx, pod)
}

// listeners returns the plugins that want to hear of such events.
func (s *Scheduler) listeners(event fwk.ClusterEvent) sets.Set[string] {
	if known, ok := s.heard.Load(event); ok {
		if names, ok := known.(sets.Set[string]); ok {
			return names
		}
	}
	out := sets.New[string]()
	for _, plugins := range s.hints {
		for name, hints := range plugins {
			if slices.ContainsFunc(hints, func(h fwk.ClusterEventWithHint) bool { return matches(h.Event, event) }) {
				out.Insert(name)
			}
		}
	}
	s.heard.Store(event, out)
	return out
}

// hint asks the plugins that rejected a pod what an event means for it.
func (s *Scheduler) hint(info *framework.QueuedPodInfo, event fwk.ClusterEvent, oldObj, newObj any) queue.Hint {
	switch {
	case s.mayHelp(info, info.PendingPlugins, event, oldObj, newObj):
		return queue.RetryNow
	case s.mayHelp(info, info.UnschedulablePlugins, event, oldObj, newObj):
		return queue.Retry
	}
	return queue.Skip
}

// hintShape returns what pods have in common for which the hints of a plugin say the same; nothing if the plugin is to
// be asked for each of them.
func (s *Scheduler) hintShape(plugin string, pod *v1.Pod) string {
	profile, ok := s.profiles[pod.Spec.SchedulerName]
	if !ok {
		return ""
	}
	if shaper, ok := profile.Plugin(plugin).(framework.HintShaper); ok {
		return profile.Name + "/" + shaper.HintShape(pod)
	}
	return ""
}

// helps asks one of the plugins that rejected a pod whether an event may help it.
func (s *Scheduler) helps(plugin string, info *framework.QueuedPodInfo, event fwk.ClusterEvent, oldObj, newObj any) bool {
	return s.mayHelp(info, sets.New(plugin), event, oldObj, newObj)
}

func (s *Scheduler) mayHelp(info *framework.QueuedPodInfo, rejecters sets.Set[string], event fwk.ClusterEvent, oldObj, newObj any) bool {
	hints := s.hints[info.GetPod().Spec.SchedulerName]
	for plugin := range rejecters {
		for _, h := range hints[plugin] {
			if !matches(h.Event, event) {
				continue
			}
			if h.QueueingHintFn == nil {
				return true
			}
			began := s.hinted.Begin()
			hint, err := h.QueueingHintFn(klog.Background(), info.GetPod(), oldObj, newObj)
			observeHint(plugin, event, hint, err, began)
			if err != nil || hint == fwk.Queue {
				return true // in doubt, another attempt is the lesser harm
			}
		}
	}
	return false
}

func matches(registered, event fwk.ClusterEvent) bool {
	sameKind := registered.Resource == fwk.WildCard || registered.Resource == event.Resource ||
		registered.Resource == fwk.Pod && (event.Resource == fwk.AssignedPod || event.Resource == fwk.UnscheduledPod)
	return sameKind && registered.ActionType&event.ActionType != 0
}
