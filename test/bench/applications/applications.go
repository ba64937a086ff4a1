// Package applications measures what users of a cluster wait for when they deploy: the pods of a
// Deployment, a rolling update, a service that answers, a name, jobs, cron jobs. It works on any
// cluster. What happens inside a pod's network is seen from there, if the pod runs on this machine.
package applications

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"wherry.dev/test/bench/inside"
)

// Samples are the measurements of one thing, in the unit that the name says.
type Samples struct {
	Name, Target string
	Values       []float64
}

// Options say how much is measured.
type Options struct {
	Image       string // has sh, sleep and httpd, as busybox does
	Deployments int    // one after another
	Replicas    int    // at once
	Updated     int    // replicas of the rolling update
	Services    int    // pods that become reachable, one after another
	Kills       int    // pods that are killed, one after another
	Jobs        int    // at once
	Cron        bool   // wait for the next minute
}

// DefaultOptions measure for about half a minute, and a minute more for the cron job.
func DefaultOptions() Options {
	return Options{Image: "docker.io/library/busybox:1.36", Deployments: 10, Replicas: 30, Updated: 10, Services: 10, Kills: 10, Jobs: 200, Cron: true}
}

const (
	namespace = metav1.NamespaceDefault
	patience  = 3 * time.Minute
	serve     = `trap "exit 0" TERM INT; mkdir -p /tmp/w; echo hi > /tmp/w/index.html; httpd -f -p 8080 -h /tmp/w & wait`
)

// bench is a run.
type bench struct {
	Options
	client kubernetes.Interface
	f      informers.SharedInformerFactory

	mu      sync.Mutex
	changed chan struct{} // closed and replaced at every change of an object
	at      time.Time     // of the last one
}

// Client returns a client that takes as little of the machine as it can: protobuf, and no limit.
func Client(cfg *rest.Config) (kubernetes.Interface, error) {
	cfg = rest.CopyConfig(cfg)
	cfg.QPS = -1
	cfg.ContentType, cfg.AcceptContentTypes = runtime.ContentTypeProtobuf, runtime.ContentTypeProtobuf
	return kubernetes.NewForConfig(cfg)
}

// Measure runs everything in the namespace default, and leaves nothing there.
func Measure(ctx context.Context, client kubernetes.Interface, o Options) ([]Samples, error) {
	ctx, cancel := context.WithCancel(ctx)
	b := &bench{Options: o, client: client, changed: make(chan struct{}), f: informers.NewSharedInformerFactoryWithOptions(client, 0, informers.WithNamespace(namespace))}
	defer b.f.Shutdown()
	defer cancel()
	if err := b.watch(ctx); err != nil {
		return nil, err
	}
	var out []Samples
	for _, step := range []func(context.Context) ([]Samples, error){b.deployments, b.replicas, b.rollout, b.reachable, b.gone, b.jobs, b.cron} {
		s, err := step(ctx)
		if err != nil {
			return nil, err
		}
		out = append(out, s...)
	}
	return out, nil
}

func (b *bench) watch(ctx context.Context) error {
	all := []cache.SharedIndexInformer{
		b.f.Core().V1().Pods().Informer(), b.f.Apps().V1().Deployments().Informer(), b.f.Batch().V1().Jobs().Informer(),
	}
	var synced []cache.DoneChecker
	for _, informer := range all {
		reg, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
			AddFunc: func(any) { b.note() }, UpdateFunc: func(any, any) { b.note() }, DeleteFunc: func(any) { b.note() },
		})
		if err != nil {
			return err
		}
		synced = append(synced, reg.HasSyncedChecker())
	}
	b.f.Start(ctx.Done())
	if !cache.WaitFor(ctx, "", synced...) {
		return context.Cause(ctx)
	}
	return nil
}

func (b *bench) note() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.at = time.Now()
	close(b.changed)
	b.changed = make(chan struct{})
}

// await returns when the watch brought what makes ok true.
func (b *bench) await(ctx context.Context, what string, ok func() bool) (time.Time, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for {
		b.mu.Lock()
		changed, at := b.changed, b.at
		b.mu.Unlock()
		if ok() {
			return at, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return at, fmt.Errorf("%s: %w", what, ctx.Err())
		}
	}
}

func ms(from, to time.Time) float64 { return max(0, float64(to.Sub(from).Microseconds())/1000) }

func podSpec(image string, command ...string) v1.PodSpec {
	return v1.PodSpec{
		TerminationGracePeriodSeconds: new(int64(5)),
		Containers:                    []v1.Container{{Name: "c", Image: image, ImagePullPolicy: v1.PullIfNotPresent, Command: command}},
	}
}

func (b *bench) deployment(name string, replicas int) *appsv1.Deployment {
	app := map[string]string{"app": name}
	return &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: app}, Spec: appsv1.DeploymentSpec{
		Replicas: new(int32(replicas)), Selector: &metav1.LabelSelector{MatchLabels: app},
		Strategy: appsv1.DeploymentStrategy{RollingUpdate: &appsv1.RollingUpdateDeployment{MaxSurge: new(intstr.FromInt32(1)), MaxUnavailable: new(intstr.FromString("25%"))}},
		Template: v1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: app}, Spec: podSpec(b.Image, inside.Loop(name)...)},
	}}
}

// deployed creates a Deployment, and returns how long it took until all is available, in ms.
func (b *bench) deployed(ctx context.Context, name string, replicas int) (float64, error) {
	start := time.Now()
	if _, err := b.client.AppsV1().Deployments(namespace).Create(ctx, b.deployment(name, replicas), metav1.CreateOptions{}); err != nil {
		return 0, err
	}
	at, err := b.await(ctx, "deployment "+name+" is not available", func() bool {
		d, err := b.f.Apps().V1().Deployments().Lister().Deployments(namespace).Get(name)
		return err == nil && d.Status.AvailableReplicas == int32(replicas)
	})
	return ms(start, at), err
}

// remove deletes a Deployment, and waits until its pods are gone.
func (b *bench) remove(ctx context.Context, name string) error {
	err := b.client.AppsV1().Deployments(namespace).Delete(ctx, name, metav1.DeleteOptions{PropagationPolicy: new(metav1.DeletePropagationBackground)})
	if err != nil {
		return err
	}
	_, err = b.await(ctx, "pods of "+name+" do not go", func() bool { return len(b.pods(name)) == 0 })
	return err
}

func (b *bench) pods(app string) []*v1.Pod {
	all, err := b.f.Core().V1().Pods().Lister().Pods(namespace).List(labels.SelectorFromSet(labels.Set{"app": app}))
	if err != nil {
		return nil
	}
	return all
}

func (b *bench) deployments(ctx context.Context) ([]Samples, error) {
	s := Samples{Name: "create deployment → available (ms)", Target: "60"}
	for i := range b.Deployments {
		name := fmt.Sprintf("one-%d", i)
		took, err := b.deployed(ctx, name, 1)
		if err = errors.Join(err, b.remove(ctx, name)); err != nil {
			return nil, err
		}
		s.Values = append(s.Values, took)
	}
	return []Samples{s}, nil
}

func (b *bench) replicas(ctx context.Context) ([]Samples, error) {
	took, err := b.deployed(ctx, "many", b.Replicas)
	if err = errors.Join(err, b.remove(ctx, "many")); err != nil {
		return nil, err
	}
	return []Samples{{Name: fmt.Sprintf("%d replicas → all available (ms)", b.Replicas), Target: "1200", Values: []float64{took}}}, nil
}

// rollout changes the template of a Deployment.
func (b *bench) rollout(ctx context.Context) ([]Samples, error) {
	if _, err := b.deployed(ctx, "rolling", b.Updated); err != nil {
		return nil, err
	}
	start := time.Now()
	d, err := b.client.AppsV1().Deployments(namespace).Get(ctx, "rolling", metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	d.Spec.Template.Annotations = map[string]string{"version": "2"}
	if d, err = b.client.AppsV1().Deployments(namespace).Update(ctx, d, metav1.UpdateOptions{}); err != nil {
		return nil, err
	}
	at, err := b.await(ctx, "the rolling update does not end", func() bool {
		now, err := b.f.Apps().V1().Deployments().Lister().Deployments(namespace).Get("rolling")
		n := int32(b.Updated)
		return err == nil && now.Status.ObservedGeneration >= d.Generation && now.Status.UpdatedReplicas == n && now.Status.AvailableReplicas == n && now.Status.Replicas == n
	})
	if err = errors.Join(err, b.remove(ctx, "rolling")); err != nil {
		return nil, err
	}
	return []Samples{{Name: fmt.Sprintf("rolling update of %d (ms)", b.Updated), Target: "1500", Values: []float64{ms(start, at)}}}, nil
}

// jobs runs many jobs of one pod at once.
func (b *bench) jobs(ctx context.Context) ([]Samples, error) {
	var done atomic.Int64
	jobs := b.f.Batch().V1().Jobs().Informer()
	counts, err := jobs.AddEventHandler(cache.ResourceEventHandlerFuncs{UpdateFunc: func(before, after any) {
		if before.(*batchv1.Job).Status.Succeeded == 0 && after.(*batchv1.Job).Status.Succeeded == 1 {
			done.Add(1)
			b.note()
		}
	}})
	if err != nil {
		return nil, err
	}
	defer jobs.RemoveEventHandler(counts) //nolint:errcheck // the informer has ended, and takes no more
	start := time.Now()
	for i := range b.Jobs {
		spec := podSpec(b.Image, "true")
		spec.RestartPolicy = v1.RestartPolicyNever
		job := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("job-%d", i)}, Spec: batchv1.JobSpec{Template: v1.PodTemplateSpec{Spec: spec}}}
		if _, err := b.client.BatchV1().Jobs(namespace).Create(ctx, job, metav1.CreateOptions{}); err != nil {
			return nil, err
		}
	}
	at, err := b.await(ctx, "jobs do not complete", func() bool { return done.Load() == int64(b.Jobs) })
	cleanup := b.client.BatchV1().Jobs(namespace).DeleteCollection(ctx, metav1.DeleteOptions{PropagationPolicy: new(metav1.DeletePropagationBackground)}, metav1.ListOptions{})
	if err = errors.Join(err, cleanup); err != nil {
		return nil, err
	}
	return []Samples{{Name: fmt.Sprintf("%d jobs at once (jobs/s)", b.Jobs), Target: "25", Values: []float64{float64(b.Jobs) / at.Sub(start).Seconds()}}}, nil
}

// cron waits for the next full minute, and measures how late the job comes.
func (b *bench) cron(ctx context.Context) ([]Samples, error) {
	if !b.Cron {
		return nil, nil
	}
	spec := podSpec(b.Image, "true")
	spec.RestartPolicy = v1.RestartPolicyNever
	cj := &batchv1.CronJob{ObjectMeta: metav1.ObjectMeta{Name: "cron"}, Spec: batchv1.CronJobSpec{Schedule: "* * * * *", JobTemplate: batchv1.JobTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": "cron"}},
		Spec:       batchv1.JobSpec{Template: v1.PodTemplateSpec{Spec: spec}},
	}}}
	if _, err := b.client.BatchV1().CronJobs(namespace).Create(ctx, cj, metav1.CreateOptions{}); err != nil {
		return nil, err
	}
	due := time.Now().Truncate(time.Minute).Add(time.Minute)
	at, err := b.await(ctx, "the cron job does not fire", func() bool {
		all, err := b.f.Batch().V1().Jobs().Lister().Jobs(namespace).List(labels.SelectorFromSet(labels.Set{"app": "cron"}))
		return err == nil && len(all) > 0
	})
	cleanup := b.client.BatchV1().CronJobs(namespace).Delete(ctx, "cron", metav1.DeleteOptions{PropagationPolicy: new(metav1.DeletePropagationBackground)})
	if err = errors.Join(err, cleanup); err != nil {
		return nil, err
	}
	return []Samples{{Name: "cron job, after its second (ms)", Target: "100", Values: []float64{ms(due, at)}}}, nil
}
