package e2e

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"wherry.dev/test/images"
)

// turmoil is a node on which users change workloads while it is killed. What containers did is in a
// folder of the node, the ledger, which they append to: nothing that is killed can change it.
type turmoil struct {
	*cluster
	ledger string
	seed   uint64
	random *rand.Rand
	counts
	// orphaned are the deployments that were to be deleted with their replica sets left, since the last
	// time that all came to rest, and whether the server has said yes: its answer may have been lost.
	orphaned map[string]bool
}

// counts is how much there was of what; for the log.
type counts struct {
	mu   sync.Mutex
	acts map[string]int // by name; accepted by the server
	jobs map[string]int // by kind; judged
}

// seedOf returns the seed of a test's random choices: $SEED plays those of another run. The moments
// differ nevertheless.
func seedOf(t *testing.T) uint64 {
	t.Helper()
	seed, err := strconv.ParseUint(cmp.Or(os.Getenv("SEED"), strconv.FormatInt(time.Now().UnixNano(), 10)), 10, 64)
	if err != nil {
		t.Fatalf("SEED: %v", err)
	}
	t.Logf("seed %d", seed)
	return seed
}

func randomOf(seed, stream uint64) *rand.Rand {
	return rand.New(rand.NewPCG(seed, stream)) //nolint:gosec // not for secrets
}

// saveWithLocks saves busybox and flock.
func saveWithLocks(tag string) func(string) error {
	return func(path string) error {
		root, err := images.Busybox()
		if err != nil {
			return err
		}
		if err := root.AddTool("/usr/bin/flock"); err != nil {
			return err
		}
		img, err := images.New(imageConfig(), root)
		if err != nil {
			return err
		}
		return images.Save(path, img, tag)
	}
}

func startTurmoil(t *testing.T) *turmoil {
	t.Helper()
	u := &turmoil{cluster: newCluster(t), ledger: t.TempDir(), seed: seedOf(t)}
	u.random = randomOf(u.seed, 0)
	u.acts, u.jobs, u.orphaned = map[string]int{}, map[string]int{}, map[string]bool{}
	u.addImage("first.tar", saveWithLocks(firstImage))
	u.addImage("second.tar", saveWithLocks(secondImage))
	u.up()
	u.kubectl("apply", "-f", u.file(u.workloads()))
	return u
}

// Wherry is killed at random moments, every third time during its start too, while users roll out,
// scale, pause, undo and delete, and while jobs run, fail, are suspended and go on. Whenever it is left
// alone all rollouts and jobs end, with what they promise; and after the purge nothing is left.
func TestWorkloadsKilledAtRandomMoments(t *testing.T) {
	needsOwnRuntime(t)
	u := startTurmoil(t)
	n := kills(t)
	for round := range n {
		u.round(round)
		u.neverTooMuch()
		if round%3 == 2 || round == n-1 {
			u.rests()
		}
	}
	t.Logf("accepted: %v; judged: %v", u.acts, u.jobs)
	u.everythingGoes()
	id := u.instanceID()
	u.must("down", "--purge")
	u.started = false
	for _, left := range leftovers(t, u.cluster, id) {
		t.Errorf("left behind: %s", left)
	}
}

// round kills the node at a random moment, while users act.
func (u *turmoil) round(round int) {
	u.t.Helper()
	ctx, stop := context.WithCancel(u.t.Context())
	var wg sync.WaitGroup
	for i, user := range []func(context.Context, *rand.Rand, int){
		u.deployer, u.scaler("ordered"), u.scaler("parallel"), u.updater, u.submitter, u.suspender, u.deleter,
	} {
		random := randomOf(u.seed, uint64(1+round*100+i))
		wg.Go(func() {
			for n := 0; ctx.Err() == nil; n++ {
				user(ctx, random, round*1000+n)
				pause(ctx, random, 400)
			}
		})
	}
	pause(ctx, u.random, 2500)
	pid := u.pid()
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		u.t.Fatal(err)
	}
	stop()
	wg.Wait()
	waitGone(u.t, pid)
	if round%3 == 2 {
		u.killedWhileItStarts(time.Duration(u.random.IntN(800)) * time.Millisecond)
	}
	u.up()
}

// pause waits for up to so many milliseconds: the moment is the experiment.
func pause(ctx context.Context, random *rand.Rand, most int) {
	select {
	case <-ctx.Done():
	case <-time.After(time.Duration(random.IntN(most)) * time.Millisecond):
	}
}

// did counts an act, if the server has accepted it. Users whose server is killed expect errors.
func (u *turmoil) did(what string, err error) bool {
	if err != nil {
		return false
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	u.acts[what]++
	return true
}

const (
	merge     = types.MergePatchType
	strategic = types.StrategicMergePatchType
)

// template is a patch that gives a workload another image, or another variable in its environment.
func template(random *rand.Rand) []byte {
	image := []string{firstImage, secondImage}[random.IntN(2)]
	return fmt.Appendf(nil, `{"spec": {"template": {"spec": {"containers": [{"name": "main", "image": %q,
		"env": [{"name": "V", "value": "%d"}]}]}}}}`, image, random.IntN(3))
}

func size(random *rand.Rand, most int) []byte {
	return fmt.Appendf(nil, `{"spec": {"replicas": %d}}`, random.IntN(most+1))
}

// deployer rolls a deployment out, back, scales it, and pauses and resumes it.
func (u *turmoil) deployer(ctx context.Context, random *rand.Rand, _ int) {
	change := func(what string, kind types.PatchType, patch []byte) {
		_, err := u.client.AppsV1().Deployments(metav1.NamespaceDefault).Patch(ctx, "web", kind, patch, metav1.PatchOptions{})
		u.did(what, err)
	}
	switch random.IntN(8) {
	case 0:
		err := u.command(ctx, "kubectl", "rollout", "undo", "deployment/web").Run()
		u.did("undo", err)
	case 1:
		change("pause", merge, []byte(`{"spec": {"paused": true}}`))
	case 2, 3:
		change("resume", merge, []byte(`{"spec": {"paused": false}}`))
	case 4, 5:
		change("deployment scaled", merge, size(random, 5))
	default:
		change("deployment updated", strategic, template(random))
	}
}

// scaler returns a user who updates and scales a stateful set, and deletes its pods.
func (u *turmoil) scaler(name string) func(context.Context, *rand.Rand, int) {
	return func(ctx context.Context, random *rand.Rand, _ int) {
		if random.IntN(4) == 0 {
			pod := fmt.Sprint(name, "-", random.IntN(3))
			u.did("pod deleted", u.client.CoreV1().Pods(metav1.NamespaceDefault).Delete(ctx, pod, metav1.DeleteOptions{}))
			return
		}
		what, kind, patch := "stateful set scaled", merge, size(random, 4)
		if random.IntN(2) == 0 {
			what, kind, patch = "stateful set updated", strategic, template(random)
		}
		_, err := u.client.AppsV1().StatefulSets(metav1.NamespaceDefault).Patch(ctx, name, kind, patch, metav1.PatchOptions{})
		u.did(what, err)
	}
}

func (u *turmoil) updater(ctx context.Context, random *rand.Rand, _ int) {
	_, err := u.client.AppsV1().DaemonSets(metav1.NamespaceDefault).
		Patch(ctx, "agent", strategic, template(random), metav1.PatchOptions{})
	u.did("daemon set updated", err)
}

// submitter creates jobs.
func (u *turmoil) submitter(ctx context.Context, random *rand.Rand, n int) {
	if n%1000 > 3 {
		return // the node has only so much room
	}
	kinds := jobKinds()
	kind := kinds[random.IntN(len(kinds))]
	name := fmt.Sprintf("%s-%d", kind.name, n)
	job := &batchv1.Job{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"kind": kind.name}},
		Spec:       kind.spec(u.ledgerVolume, name),
	}
	_, err := u.client.BatchV1().Jobs(metav1.NamespaceDefault).Create(ctx, job, metav1.CreateOptions{})
	u.did("job created", err)
}

// suspender suspends and resumes the jobs that bear it.
func (u *turmoil) suspender(ctx context.Context, random *rand.Rand, _ int) {
	jobs := u.client.BatchV1().Jobs(metav1.NamespaceDefault)
	list, err := jobs.List(ctx, metav1.ListOptions{LabelSelector: "kind=" + suspended})
	if err != nil || len(list.Items) == 0 {
		return
	}
	j := &list.Items[random.IntN(len(list.Items))]
	suspend := !*j.Spec.Suspend
	_, err = jobs.Patch(ctx, j.Name, merge, fmt.Appendf(nil, `{"spec": {"suspend": %v}}`, suspend), metav1.PatchOptions{})
	u.did(fmt.Sprint("suspend ", suspend), err)
}

// deleter makes deployments, and deletes them in each of the three ways.
func (u *turmoil) deleter(ctx context.Context, random *rand.Rand, n int) {
	if n%1000 > 3 {
		return
	}
	name := fmt.Sprint("gone-", n)
	create := u.command(ctx, "kubectl", "create", "deployment", name, "--image", firstImage, "--", "sh", "-c", loop)
	if create.Run() != nil {
		return
	}
	for {
		which := metav1.ListOptions{LabelSelector: "app=" + name}
		sets, err := u.client.AppsV1().ReplicaSets(metav1.NamespaceDefault).List(ctx, which)
		if err != nil {
			return
		}
		if len(sets.Items) > 0 {
			break
		}
		pause(ctx, random, 20)
	}
	pause(ctx, random, 300)
	policies := []metav1.DeletionPropagation{
		metav1.DeletePropagationForeground, metav1.DeletePropagationBackground, metav1.DeletePropagationOrphan,
	}
	policy := policies[random.IntN(len(policies))]
	orphans := policy == metav1.DeletePropagationOrphan
	if orphans {
		u.orphaned[name] = false
	}
	how := metav1.DeleteOptions{PropagationPolicy: &policy}
	err := u.client.AppsV1().Deployments(metav1.NamespaceDefault).Delete(ctx, name, how)
	if u.did("deleted "+string(policy), err) && orphans {
		u.orphaned[name] = true
	}
}

// alone runs a script of which there may be only one under the name of a pod.
const alone = `exec 9>/ledger/live-$(hostname); flock -n 9 || hostname >> /ledger/twice; ` + loop

const workloadPod = `metadata: {labels: {app: %[1]s}}, spec: {terminationGracePeriodSeconds: 1,
  volumes: [{name: ledger, hostPath: {path: %[3]q}}], containers: [{name: main, image: %[4]q, command: [sh, -c, %[2]q],
  volumeMounts: [{name: ledger, mountPath: /ledger}]}]}`

func (u *turmoil) workloads() string {
	pod := func(app, script string) string { return fmt.Sprintf(workloadPod, app, script, u.ledger, firstImage) }
	of := func(kind, name, spec, script string) string {
		return fmt.Sprintf(`{apiVersion: apps/v1, kind: %s, metadata: {name: %s}, spec: {%s
  selector: {matchLabels: {app: %[2]s}}, template: {%[4]s}}}`, kind, name, spec, pod(name, script))
	}
	tick := pod("tick", jobScript("tick", "sleep 0.3"))
	return of("Deployment", "web", "replicas: 3,", loop) + "\n---\n" +
		of("StatefulSet", "ordered", "replicas: 3, serviceName: ordered,", alone) + "\n---\n" +
		of("StatefulSet", "parallel", "replicas: 3, serviceName: parallel, podManagementPolicy: Parallel,", alone) + "\n---\n" +
		of("DaemonSet", "agent", "", loop) + `
---
{apiVersion: v1, kind: Service, metadata: {name: web}, spec: {selector: {app: web}, sessionAffinity: ClientIP,
  ports: [{port: 80, targetPort: 8080}]}}
---
{apiVersion: batch/v1, kind: CronJob, metadata: {name: tick}, spec: {schedule: "* * * * *", concurrencyPolicy: Forbid,
  successfulJobsHistoryLimit: 2, jobTemplate: {spec: {template: {` + tick[:len(tick)-1] + `, restartPolicy: Never}}}}}}
`
}

func (u *turmoil) statefulSets() []appsv1.StatefulSet {
	u.t.Helper()
	list, err := u.client.AppsV1().StatefulSets(metav1.NamespaceDefault).List(u.t.Context(), metav1.ListOptions{})
	if err != nil {
		u.t.Fatal(err)
	}
	return list.Items
}

// read returns what is in a file of the ledger.
func (u *turmoil) read(name string) string {
	u.t.Helper()
	text, err := os.ReadFile(filepath.Join(u.ledger, name))
	if err != nil && !os.IsNotExist(err) {
		u.t.Fatal(err)
	}
	return string(text)
}
