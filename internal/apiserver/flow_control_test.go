package apiserver

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"

	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/apis/flowcontrol/bootstrap"
	"k8s.io/client-go/rest"
)

// answer is what is left of a response when its body has been read.
type answer struct {
	StatusCode int
	Status     string
	Header     http.Header
}

// ask makes a GET request without a client's retries.
func ask(t *testing.T, cfg *rest.Config, path string) (head answer, body string) {
	t.Helper()
	c, err := rest.HTTPClientFor(cfg)
	if err != nil {
		t.Fatal(err)
	}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, cfg.Host+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	res, err := c.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(res.Body)
	if err := errors.Join(err, res.Body.Close()); err != nil {
		t.Fatal(err)
	}
	return answer{res.StatusCode, res.Status, res.Header}, string(text)
}

// endless is a body that ends when the channel is closed.
type endless chan struct{}

func (e endless) Read([]byte) (int, error) {
	<-e
	return 0, io.EOF
}

// occupy makes a request that goes on until finish is called. It is made again while it is refused, since the seat of
// a request that has been answered may not be free yet.
func occupy(t *testing.T, cfg *rest.Config) (finish func()) {
	t.Helper()
	c, err := rest.HTTPClientFor(cfg)
	if err != nil {
		t.Fatal(err)
	}
	const path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
	over, done := make(endless), make(chan error, 1)
	post := func() (status int, err error) {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, cfg.Host+path, over)
		if err != nil {
			return 0, err
		}
		req.Header.Set("Content-Type", "application/json")
		res, err := c.Do(req)
		if err != nil {
			return 0, err
		}
		return res.StatusCode, res.Body.Close()
	}
	go func() {
		status, err := post()
		for err == nil && status == http.StatusTooManyRequests {
			status, err = post()
		}
		done <- err
	}()
	finish = sync.OnceFunc(func() {
		close(over)
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(finish)
	return finish
}

func TestFlowControlObjectsAreKept(t *testing.T) {
	s := start(t)
	ctx, api := t.Context(), admin(t, s).FlowcontrolV1()
	flows := api.FlowSchemas()
	for _, want := range append(bootstrap.MandatoryFlowSchemas, bootstrap.SuggestedFlowSchemas...) {
		got, err := flows.Get(ctx, want.Name, metav1.GetOptions{})
		if err != nil || got.Spec.String() != want.Spec.String() {
			t.Errorf("%s: %v, %v", want.Name, err, got)
		}
		level := want.Spec.PriorityLevelConfiguration.Name
		if _, err := api.PriorityLevelConfigurations().Get(ctx, level, metav1.GetOptions{}); err != nil {
			t.Errorf("priority level of %s: %v", want.Name, err)
		}
	}
	patch := func(name, text string) error {
		_, err := flows.Patch(ctx, name, types.MergePatchType, []byte(text), metav1.PatchOptions{})
		return err
	}
	precedence := func(name string) int32 {
		o, err := flows.Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return 0
		}
		return o.Spec.MatchingPrecedence
	}
	// The mandatory ones cannot be changed; the suggested ones only where they are not to be kept.
	if err := patch("catch-all", `{"spec":{"matchingPrecedence":77}}`); !apierrors.IsInvalid(err) {
		t.Errorf("change of a mandatory object: %v", err)
	}
	if err := patch("global-default", `{"metadata":{"annotations":{"apf.kubernetes.io/autoupdate-spec":"false"}},"spec":{"matchingPrecedence":77}}`); err != nil {
		t.Fatal(err)
	}
	// Of another version: what its annotation says to be kept, and is not ours.
	leftover := bootstrap.SuggestedFlowSchemaProbes.DeepCopy()
	leftover.Name = "leftover"
	if _, err := flows.Create(ctx, leftover, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	for _, change := range []error{
		patch("service-accounts", `{"spec":{"matchingPrecedence":78}}`),
		patch("kube-scheduler", `{"metadata":{"annotations":null}}`),
		patch("leftover", `{"metadata":{"annotations":{"apf.kubernetes.io/autoupdate-spec":"true"}}}`),
		flows.Delete(ctx, "probes", metav1.DeleteOptions{}),
		flows.Delete(ctx, "exempt", metav1.DeleteOptions{}),
	} {
		if change != nil && !apierrors.IsNotFound(change) {
			t.Fatal(change)
		}
	}
	eventually(t, func() error {
		if _, err := flows.Get(ctx, "leftover", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			return errors.New("a leftover is still there")
		}
		if precedence("service-accounts") == 78 || precedence("probes") == 0 || precedence("exempt") == 0 {
			return errors.New("an object that is to be kept is not as it was")
		}
		if o, err := flows.Get(ctx, "kube-scheduler", metav1.GetOptions{}); err != nil || o.Annotations[flowcontrolv1.AutoUpdateAnnotationKey] != "true" {
			return errors.New("the annotation has not come back")
		}
		return nil
	})
	if got := precedence("global-default"); got != 77 {
		t.Errorf("an object that is not to be kept was restored: %d", got)
	}
}

func TestFlowControlHoldsBackOneClientAndNotAnother(t *testing.T) {
	// Every level has one seat of the two.
	s := start(t, func(c *Config) { c.MaxRequestsInFlight, c.MaxMutatingRequestsInFlight = 1, 1 })
	ctx, api := t.Context(), admin(t, s).FlowcontrolV1()
	_, err := api.PriorityLevelConfigurations().Create(ctx, &flowcontrolv1.PriorityLevelConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: "narrow"},
		Spec: flowcontrolv1.PriorityLevelConfigurationSpec{
			Type: flowcontrolv1.PriorityLevelEnablementLimited,
			Limited: &flowcontrolv1.LimitedPriorityLevelConfiguration{
				NominalConcurrencyShares: new(int32(1)), BorrowingLimitPercent: new(int32(0)),
				LimitResponse: flowcontrolv1.LimitResponse{Type: flowcontrolv1.LimitResponseTypeReject},
			},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	schema, err := api.FlowSchemas().Create(ctx, &flowcontrolv1.FlowSchema{
		ObjectMeta: metav1.ObjectMeta{Name: "mallory"},
		Spec: flowcontrolv1.FlowSchemaSpec{
			MatchingPrecedence: 10, PriorityLevelConfiguration: flowcontrolv1.PriorityLevelConfigurationReference{Name: "narrow"},
			Rules: []flowcontrolv1.PolicyRulesWithSubjects{{
				Subjects: []flowcontrolv1.Subject{{Kind: flowcontrolv1.SubjectKindUser, User: &flowcontrolv1.UserSubject{Name: "mallory"}}},
				ResourceRules: []flowcontrolv1.ResourcePolicyRule{{
					Verbs: []string{"*"}, APIGroups: []string{"*"}, Resources: []string{"*"}, ClusterScope: true,
				}},
				NonResourceRules: []flowcontrolv1.NonResourcePolicyRule{{Verbs: []string{"*"}, NonResourceURLs: []string{"*"}}},
			}},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	const flow, level = "X-Kubernetes-PF-FlowSchema-UID", "X-Kubernetes-PF-PriorityLevel-UID"
	mallory := s.ClientConfig("mallory")
	eventually(t, func() error {
		if res, _ := ask(t, mallory, "/version"); res.Header.Get(flow) != string(schema.UID) {
			return fmt.Errorf("mallory is in %s", res.Header.Get(flow))
		}
		return nil
	})
	finish := occupy(t, mallory)
	eventually(t, func() error {
		res, _ := ask(t, mallory, "/version")
		if res.StatusCode != http.StatusTooManyRequests || res.Header.Get("Retry-After") == "" {
			return fmt.Errorf("mallory's second request got %s", res.Status)
		}
		return nil
	})
	if res, _ := ask(t, s.ClientConfig("alice"), "/version"); res.StatusCode != http.StatusOK || res.Header.Get(flow) == "" || res.Header.Get(level) == "" {
		t.Errorf("another client got %d, %v", res.StatusCode, res.Header)
	}
	finish()
	eventually(t, func() error {
		if res, _ := ask(t, mallory, "/version"); res.StatusCode != http.StatusOK {
			return fmt.Errorf("after the first request is over, the next got %s", res.Status)
		}
		return nil
	})
	// Where each client of a node belongs, as upstream has it.
	for user, c := range map[string]struct {
		groups []string
		want   string
	}{
		"admin":                          {[]string{"system:masters"}, "exempt"},
		"system:node:n":                  {[]string{"system:nodes"}, "system-nodes"},
		"system:kube-scheduler":          {nil, "kube-scheduler"},
		"system:kube-controller-manager": {nil, "kube-controller-manager"},
		"system:serviceaccount:kube-system:job-controller": {[]string{"system:serviceaccounts", "system:serviceaccounts:kube-system"}, "kube-system-service-accounts"},
	} {
		o, err := api.FlowSchemas().Get(ctx, c.want, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		eventually(t, func() error {
			res, _ := ask(t, s.ClientConfig(user, c.groups...), "/api/v1/pods")
			if got := res.Header.Get(flow); got != string(o.UID) {
				return fmt.Errorf("%s is not in %s", user, c.want)
			}
			return nil
		})
	}
	boss := s.ClientConfig("admin", "system:masters")
	if _, body := ask(t, boss, "/debug/api_priority_and_fairness/dump_priority_levels"); !strings.Contains(body, "narrow") {
		t.Errorf("levels: %s", body)
	}
	if _, body := ask(t, boss, "/metrics"); !strings.Contains(body, `apiserver_flowcontrol_rejected_requests_total{flow_schema="mallory",priority_level="narrow"`) {
		t.Error("no metric of the refused requests")
	}
	eventually(t, func() error { // the schema says that its level exists
		o, err := api.FlowSchemas().Get(ctx, "mallory", metav1.GetOptions{})
		if err != nil || len(o.Status.Conditions) != 1 || o.Status.Conditions[0].Status != flowcontrolv1.ConditionFalse {
			return errors.New("the schema has no status")
		}
		return nil
	})
}

func TestWithoutFlowControlRequestsAreOnlyCounted(t *testing.T) {
	s := start(t, func(c *Config) { c.PriorityAndFairness = false })
	list, err := admin(t, s).FlowcontrolV1().FlowSchemas().List(t.Context(), metav1.ListOptions{})
	if err != nil || len(list.Items) != 0 {
		t.Errorf("%v; %v", list.Items, err)
	}
	res, _ := ask(t, s.ClientConfig("admin", "system:masters"), "/version")
	if got := res.Header.Get("X-Kubernetes-PF-FlowSchema-UID"); res.StatusCode != http.StatusOK || got != "" {
		t.Errorf("%s, %q", res.Status, got)
	}
}
