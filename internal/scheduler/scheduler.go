package scheduler

import (
	"context"
	"fmt"
	"maps"
	"sync"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/client-go/informers"
	clientset "k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/events"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"

	schedcache "wherry.dev/internal/scheduler/cache"
	"wherry.dev/internal/scheduler/framework"
	"wherry.dev/internal/scheduler/queue"
)

// Scheduler places pods. Create one with New, and Run it once.
type Scheduler struct {
	client   clientset.Interface
	profiles map[string]*framework.Profile
	hints    map[string][]fwk.ClusterEventWithHint // by plugin
	queue    *queue.Queue
	cache    *schedcache.Cache
	snapshot schedcache.Snapshot // used only by the scheduling cycle
	recorder events.EventRecorderLogger
	events   events.EventBroadcaster
	next     int // the position of the round-robin among equally good nodes
	bindings sync.WaitGroup
	ready    chan struct{}
}

// New returns a scheduler. It talks to the API server only once it runs.
func New(ctx context.Context, client clientset.Interface, cfg Config) (*Scheduler, error) {
	profiles, err := cfg.profiles(client)
	if err != nil {
		return nil, err
	}
	s := &Scheduler{
		client: client, profiles: profiles, hints: map[string][]fwk.ClusterEventWithHint{},
		cache: schedcache.New(klog.FromContext(ctx)), ready: make(chan struct{}),
	}
	var first *framework.Profile
	for _, p := range profiles {
		ev, err := p.Events(ctx)
		if err != nil {
			return nil, err
		}
		maps.Copy(s.hints, ev)
		first = p
	}
	s.queue = queue.New(queue.Config{
		Less: first.Less, PreEnqueue: s.preEnqueue, Hints: s.mayHelp,
		InitialBackoff: cfg.InitialBackoff, MaxBackoff: cfg.MaxBackoff,
	})
	return s, nil
}

// Ready returns a channel that is closed once the scheduler has seen all pods and nodes.
func (s *Scheduler) Ready() <-chan struct{} { return s.ready }

// Run schedules until ctx ends. It returns when its last binding is done.
func (s *Scheduler) Run(ctx context.Context) error {
	s.events = events.NewBroadcaster(&events.EventSinkImpl{Interface: s.client.EventsV1()})
	s.recorder = s.events.NewRecorder(scheme.Scheme, v1.DefaultSchedulerName)
	if err := s.events.StartRecordingToSinkWithContext(ctx); err != nil {
		return fmt.Errorf("record events: %w", err)
	}
	defer s.events.Shutdown()
	factory := informers.NewSharedInformerFactoryWithOptions(s.client, 0, informers.WithTransform(trim))
	synced, err := s.watch(ctx, factory)
	if err != nil {
		return err
	}
	factory.Start(ctx.Done())
	defer factory.Shutdown()
	if !cache.WaitFor(ctx, "scheduler", synced...) {
		return nil // told to stop before it began
	}
	close(s.ready)
	for {
		info, err := s.queue.Pop(ctx)
		if err != nil {
			s.bindings.Wait()
			return nil
		}
		s.scheduleOne(ctx, info)
	}
}

// trim drops what the scheduler never reads, which is most of a small pod.
func trim(obj any) (any, error) {
	if m, err := meta.Accessor(obj); err == nil {
		m.SetManagedFields(nil)
	}
	return obj, nil
}

func (s *Scheduler) preEnqueue(ctx context.Context, pod *v1.Pod) *fwk.Status {
	return s.profiles[pod.Spec.SchedulerName].PreEnqueue(ctx, pod)
}

// mayHelp asks the plugins that rejected a pod whether an event may help.
func (s *Scheduler) mayHelp(info *framework.QueuedPodInfo, event fwk.ClusterEvent, oldObj, newObj any) bool {
	for plugin := range info.UnschedulablePlugins {
		for _, h := range s.hints[plugin] {
			if !matches(h.Event, event) {
				continue
			}
			if h.QueueingHintFn == nil {
				return true
			}
			hint, err := h.QueueingHintFn(klog.Background(), info.GetPod(), oldObj, newObj)
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
