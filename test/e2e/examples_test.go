package e2e

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"

	batchv1 "k8s.io/api/batch/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// What a visitor writes reaches the leader, and the readers of every follower.
func TestExampleGuestbook(t *testing.T) {
	c := startCluster(t)
	c.kubectl("apply", "-f", example("guestbook.yaml"))
	for _, tier := range []string{"leader", "follower", "frontend"} {
		c.rollsOut("deployment/"+tier, "successfully rolled out")
	}
	const book = "/api/v1/namespaces/default/services/http:frontend:80/proxy/cgi-bin/book"
	c.prints("^Thank you.\n$", "get", "--raw", book+"?name=Ada")
	followers := strings.Fields(c.kubectl("get", "pods", "-l", "tier=follower", "-o", "jsonpath={.items[*].metadata.name}"))
	if len(followers) != 2 {
		t.Errorf("followers: %v", followers)
	}
	for _, f := range followers {
		c.prints("^Ada\n$", "exec", f, "--", "cat", "/www/book")
	}
	c.prints("^Ada\n$", "get", "--raw", book)

	c.kubectl("scale", "deployment/follower", "--replicas", "3")
	c.rollsOut("deployment/follower", "successfully rolled out")
	c.kubectl("delete", "-f", example("guestbook.yaml"), "--timeout", fmt.Sprint(patience))
}

// Each pod finds each by its name, and finds its successor under the same name.
func TestExampleStatefulSet(t *testing.T) {
	t.Parallel()
	c := startCluster(t)
	c.kubectl("apply", "-f", example("statefulset.yaml"))
	c.kubectl("rollout", "status", "statefulset/db", "--timeout", fmt.Sprint(patience))
	finds := func(from, to string) {
		t.Helper()
		c.prints("^"+to+"\n$", "exec", from, "--", "wget", "-qO-", "http://"+to+".db:8080")
	}
	for _, from := range []string{"db-0", "db-1", "db-2"} {
		for _, to := range []string{"db-0", "db-1", "db-2"} {
			finds(from, to)
		}
	}
	before := c.get("db-0")
	c.kubectl("delete", "pod", "db-0")
	c.until("there is another db-0", func() bool {
		p, err := c.client.CoreV1().Pods(metav1.NamespaceDefault).Get(t.Context(), "db-0", metav1.GetOptions{})
		return err == nil && p.UID != before.UID && ready(p)
	})
	finds("db-2", "db-0")
	c.kubectl("delete", "-f", example("statefulset.yaml"), "--timeout", fmt.Sprint(patience))
}

// The job comes with the minute, and nobody asks for it.
func TestExampleCronJob(t *testing.T) {
	t.Parallel()
	c := startCluster(t)
	c.kubectl("apply", "-f", example("cronjob.yaml"))
	done := func() (out []batchv1.Job) {
		jobs, err := c.client.BatchV1().Jobs(metav1.NamespaceDefault).List(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return slices.DeleteFunc(jobs.Items, func(j batchv1.Job) bool { return j.Status.Succeeded == 0 })
	}
	c.until("a job is done", func() bool { return len(done()) > 0 })
	job := done()[0]
	if at := job.Annotations[batchv1.CronJobScheduledTimestampAnnotation]; !strings.HasSuffix(at, ":00Z") {
		t.Errorf("scheduled at %q, which is not a full minute", at)
	}
	if got := c.kubectl("logs", "job/"+job.Name); !regexp.MustCompile(`^It is \d\d:\d\d:\d\d\n$`).MatchString(got) {
		t.Errorf("its log: %q", got)
	}
	c.kubectl("delete", "-f", example("cronjob.yaml"), "--timeout", fmt.Sprint(patience))
	c.until("its jobs are gone", func() bool { return len(done()) == 0 })
}
