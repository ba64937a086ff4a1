package e2e

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// becomes waits until nothing is wrong.
func (u *turmoil) becomes(what string, wrong func() []string) {
	u.t.Helper()
	for deadline := time.Now().Add(patience); ; time.Sleep(50 * time.Millisecond) {
		left := wrong()
		if len(left) == 0 {
			return
		}
		if time.Now().After(deadline) {
			u.t.Fatalf("within %s %s, but:\n%s", patience, what, strings.Join(left, "\n"))
		}
	}
}

func (u *turmoil) pods(selector string) []v1.Pod {
	u.t.Helper()
	which := metav1.ListOptions{LabelSelector: selector}
	list, err := u.client.CoreV1().Pods(metav1.NamespaceDefault).List(u.t.Context(), which)
	if err != nil {
		u.t.Fatal(err)
	}
	return list.Items
}

// rests leaves the node alone until all has come to rest, and judges what there is then.
func (u *turmoil) rests() {
	u.t.Helper()
	u.kubectl("patch", "deployment/web", "--patch", `{"spec": {"paused": false, "replicas": 3}}`)
	u.kubectl("scale", "statefulset/ordered", "statefulset/parallel", "--replicas", "2")
	u.rollsOut("deployment/web", "successfully rolled out")
	u.rollsOut("statefulset/ordered", "roll out complete")
	u.rollsOut("statefulset/parallel", "roll out complete")
	u.rollsOut("daemonset/agent", "successfully rolled out")
	u.setsAreRight()
	u.jobsEnd()
	u.orphansStay()
	u.nobodyIsLeftAlone()
	u.becomes("all workloads have their pods, and no others", func() (wrong []string) {
		for app, n := range map[string]int{"web": 3, "ordered": 2, "parallel": 2, "agent": 1} {
			pods := u.pods("app=" + app)
			healthy := slices.DeleteFunc(slices.Clone(pods), func(p v1.Pod) bool {
				return !ready(&p) || p.DeletionTimestamp != nil
			})
			if len(pods) != n || len(healthy) != n {
				wrong = append(wrong, fmt.Sprintf("%s has %d pods, %d of them ready, want %d", app, len(pods), len(healthy), n))
			}
		}
		return wrong
	})
	u.serviceIsRight()
	u.onlyPodsRun()
	u.neverTooMuch()
}

// running returns how many containers the node runs for each pod, as their cgroups tell.
func (u *turmoil) running() map[string]int {
	u.t.Helper()
	of := regexp.MustCompile("wherry-" + u.instanceID() + `/.*/pod([0-9a-f-]+)/([0-9a-f]{64})$`)
	found := map[[2]string]bool{} // a hybrid machine has more than one tree of cgroups
	err := filepath.WalkDir("/sys/fs/cgroup", func(path string, _ fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENODEV) {
			return nil
		}
		if m := of.FindStringSubmatch(path); m != nil {
			found[[2]string{m[1], m[2]}] = true
		}
		return err
	})
	if err != nil {
		u.t.Fatal(err)
	}
	out := map[string]int{}
	for c := range found {
		out[c[0]]++
	}
	return out
}

// onlyPodsRun waits until the node runs one container for each pod that has not ended, and nothing else.
// Those of stateful sets must hold their locks.
func (u *turmoil) onlyPodsRun() {
	u.t.Helper()
	u.becomes("the node runs what the API has", func() []string {
		want := map[string]int{}
		for _, p := range u.pods("") {
			if p.Status.Phase == v1.PodRunning {
				want[string(p.UID)] = 1
			}
		}
		if got := u.running(); !maps.Equal(got, want) {
			return []string{fmt.Sprintf("%v, want %v", got, want)}
		}
		return nil
	})
	for _, name := range []string{"ordered-0", "ordered-1", "parallel-0", "parallel-1"} {
		const held = "7"
		_, err := u.try("kubectl", "exec", name, "--", "flock", "-n", "-E", held, "/ledger/live-"+name, "true")
		if strconv.Itoa(exitCode(err)) != held {
			u.t.Errorf("%s does not hold its lock: %v", name, err)
		}
	}
}

// setsAreRight waits until only the newest replica set of the deployment is not empty, and no stateful
// set speaks of two revisions.
func (u *turmoil) setsAreRight() {
	u.t.Helper()
	u.becomes("one replica set has all pods, and each stateful set one revision", func() (wrong []string) {
		full := 0
		for _, rs := range u.sets() {
			if rs.Labels["app"] != "web" {
				continue
			}
			if rs.Status.Replicas != *rs.Spec.Replicas {
				wrong = append(wrong, fmt.Sprintf("%s: %d of %d", rs.Name, rs.Status.Replicas, *rs.Spec.Replicas))
			}
			if *rs.Spec.Replicas > 0 {
				full++
			}
		}
		if full != 1 {
			wrong = append(wrong, fmt.Sprintf("%d replica sets have pods", full))
		}
		for _, set := range u.statefulSets() {
			if st := set.Status; st.CurrentRevision != st.UpdateRevision || st.Replicas != 2 || st.ReadyReplicas != 2 {
				wrong = append(wrong, fmt.Sprintf("%s: %+v", set.Name, st))
			}
		}
		return wrong
	})
}

// orphansStay checks that what was left on purpose is there and works, and deletes it, and the
// deployments whose deletion was lost.
func (u *turmoil) orphansStay() {
	u.t.Helper()
	for name, certain := range u.orphaned {
		if certain {
			u.becomes("the replica set of "+name+" stays without it", func() []string { return u.noOrphan(name) })
		}
	}
	u.becomes("there is no deployment but web", func() (wrong []string) {
		list, err := u.client.AppsV1().Deployments(metav1.NamespaceDefault).List(u.t.Context(), metav1.ListOptions{})
		if err != nil {
			u.t.Fatal(err)
		}
		for _, d := range list.Items {
			if d.Name == "web" {
				continue
			}
			wrong = append(wrong, d.Name)
			err := u.client.AppsV1().Deployments(d.Namespace).Delete(u.t.Context(), d.Name, metav1.DeleteOptions{})
			if err != nil && !apierrors.IsNotFound(err) {
				u.t.Fatal(err)
			}
		}
		return wrong
	})
	for name := range u.orphaned {
		u.kubectl("delete", "replicaset", "-l", "app="+name)
	}
	clear(u.orphaned)
}

// noOrphan tells what there is of a deployment, unless that is a healthy replica set without an owner.
func (u *turmoil) noOrphan(name string) []string {
	for _, rs := range u.sets() {
		if rs.Labels["app"] == name && len(rs.OwnerReferences) == 0 && rs.Status.ReadyReplicas == 1 {
			return nil
		}
	}
	return []string{u.kubectl("get", "deployments,replicasets,pods", "-l", "app="+name, "-o", "yaml")}
}

// objects returns the metadata of all that has owners, or is one.
func (u *turmoil) objects() []metav1.ObjectMeta {
	u.t.Helper()
	var out []metav1.ObjectMeta
	note := func(err error) {
		if err != nil {
			u.t.Fatal(err)
		}
	}
	ctx, o, ns := u.t.Context(), metav1.ListOptions{}, metav1.NamespaceDefault
	deployments, err := u.client.AppsV1().Deployments(ns).List(ctx, o)
	note(err)
	for _, d := range deployments.Items {
		out = append(out, d.ObjectMeta)
	}
	daemons, err := u.client.AppsV1().DaemonSets(ns).List(ctx, o)
	note(err)
	for _, d := range daemons.Items {
		out = append(out, d.ObjectMeta)
	}
	crons, err := u.client.BatchV1().CronJobs(ns).List(ctx, o)
	note(err)
	for _, cron := range crons.Items {
		out = append(out, cron.ObjectMeta)
	}
	services, err := u.client.CoreV1().Services(ns).List(ctx, o)
	note(err)
	for _, s := range services.Items {
		out = append(out, s.ObjectMeta)
	}
	slicesOf, err := u.client.DiscoveryV1().EndpointSlices(ns).List(ctx, o)
	note(err)
	for _, s := range slicesOf.Items {
		out = append(out, s.ObjectMeta)
	}
	for _, set := range u.statefulSets() {
		out = append(out, set.ObjectMeta)
	}
	for _, j := range u.listJobs() {
		out = append(out, j.ObjectMeta)
	}
	for _, rs := range u.sets() {
		out = append(out, rs.ObjectMeta)
	}
	for _, r := range u.revisions() {
		out = append(out, r.ObjectMeta)
	}
	for _, p := range u.pods("") {
		out = append(out, p.ObjectMeta)
	}
	return out
}

// nobodyIsLeftAlone waits until nothing has an owner that is gone, nothing is being deleted, and no
// pod, replica set or revision lacks an owner.
func (u *turmoil) nobodyIsLeftAlone() {
	u.t.Helper()
	u.becomes("everything has its owner, and nothing is being deleted", func() (wrong []string) {
		all := u.objects()
		there := map[types.UID]bool{}
		for _, o := range all {
			there[o.UID] = true
		}
		for _, o := range all {
			if o.DeletionTimestamp != nil {
				wrong = append(wrong, fmt.Sprintf("%s is being deleted; finalizers %v", o.Name, o.Finalizers))
			}
			for _, ref := range o.OwnerReferences {
				if !there[ref.UID] {
					wrong = append(wrong, fmt.Sprintf("%s is owned by %s %s, which is gone", o.Name, ref.Kind, ref.Name))
				}
			}
		}
		for _, p := range u.pods("") {
			if len(p.OwnerReferences) == 0 {
				wrong = append(wrong, fmt.Sprintf("pod %s has no owner", p.Name))
			}
		}
		for _, rs := range u.sets() {
			if len(rs.OwnerReferences) == 0 {
				wrong = append(wrong, fmt.Sprintf("replica set %s has no owner", rs.Name))
			}
		}
		return wrong
	})
}

// targets finds frontends and endpoints in two maps: those to pick from, and those to which clients stay.
var targets = map[string]*regexp.Regexp{
	"endpoints4": regexp.MustCompile(`([0-9.]+) \. tcp \. 80 \. 0x[0-9a-f]+ : ([0-9.]+) \. 8080`),
	"learners4":  regexp.MustCompile(`([0-9.]+) \. tcp \. 80 \. ([0-9.]+) \. 8080 : goto learn4-for-10800s`),
}

// ruled returns the endpoints that a map has for a service.
func (u *turmoil) ruled(set, clusterIP string) map[string]bool {
	u.t.Helper()
	table, ips := "wherry-"+u.instanceID()+"-proxy", map[string]bool{}
	rules, err := exec.CommandContext(u.t.Context(), "nft", "list", "map", "inet", table, set).CombinedOutput()
	if err != nil {
		u.t.Fatalf("%v: %s", err, rules)
	}
	for _, m := range targets[set].FindAllStringSubmatch(string(rules), -1) {
		if m[1] == clusterIP {
			ips[m[2]] = true
		}
	}
	return ips
}

// serviceIsRight waits until the slices and the kernel's rules of the service are its ready pods.
func (u *turmoil) serviceIsRight() {
	u.t.Helper()
	service, err := u.client.CoreV1().Services(metav1.NamespaceDefault).Get(u.t.Context(), "web", metav1.GetOptions{})
	if err != nil {
		u.t.Fatal(err)
	}
	u.becomes("slices and rules are the ready pods", func() (wrong []string) {
		want, sliced := map[string]bool{}, map[string]bool{}
		for _, p := range u.pods("app=web") {
			if ready(&p) && p.DeletionTimestamp == nil {
				want[p.Status.PodIP] = true
			}
		}
		list, err := u.client.DiscoveryV1().EndpointSlices(metav1.NamespaceDefault).
			List(u.t.Context(), metav1.ListOptions{LabelSelector: "kubernetes.io/service-name=web"})
		if err != nil {
			u.t.Fatal(err)
		}
		for _, s := range list.Items {
			for _, e := range s.Endpoints {
				sliced[e.Addresses[0]] = *e.Conditions.Ready
			}
		}
		if !maps.Equal(want, sliced) {
			wrong = append(wrong, fmt.Sprintf("pods %v, slices %v", want, sliced))
		}
		for set := range targets {
			if got := u.ruled(set, service.Spec.ClusterIP); !maps.Equal(want, got) {
				wrong = append(wrong, fmt.Sprintf("pods %v, %s %v", want, set, got))
			}
		}
		return wrong
	})
}

// everythingGoes deletes all workloads, and waits until nothing of them is left.
func (u *turmoil) everythingGoes() {
	u.t.Helper()
	u.kubectl("delete", "service/web", "cronjob/tick", "daemonset/agent", "statefulset/ordered")
	u.kubectl("delete", "deployment/web", "statefulset/parallel", "--cascade=foreground")
	u.becomes("nothing is left in the API", func() (wrong []string) {
		for _, o := range u.objects() {
			if o.Name != "kubernetes" {
				wrong = append(wrong, o.Name)
			}
		}
		return wrong
	})
}
