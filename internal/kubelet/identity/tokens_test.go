package identity

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
)

// TestAccountTokensAreKept: a credential provider plugin's response is valid for one token, so a
// new token for each pull would mean a new run of the plugin.
func TestAccountTokensAreKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client, asked := fake.NewClientset(), []types.UID{}
		client.PrependReactor("create", "serviceaccounts", func(a clienttesting.Action) (bool, runtime.Object, error) {
			req := a.(clienttesting.CreateAction).GetObject().(*authenticationv1.TokenRequest).DeepCopy()
			asked = append(asked, req.UID)
			req.Status.Token = fmt.Sprint(req.Spec.Audiences, len(asked))
			req.Status.ExpirationTimestamp = metav1.NewTime(time.Now().Add(time.Hour))
			return true, req, nil
		})
		tokens := NewTokenSource(client)
		pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", UID: "u"}, Spec: v1.PodSpec{ServiceAccountName: "robot"}}
		want := func(account types.UID, want string) {
			t.Helper()
			if got, err := tokens.AccountToken(t.Context(), pod, account, "aud"); err != nil || got != want {
				t.Errorf("%q, %v", got, err)
			}
		}
		want("a", "[aud] 1")
		want("a", "[aud] 1")
		want("b", "[aud] 2") // it was deleted and created again
		time.Sleep(50 * time.Minute)
		want("b", "[aud] 3")
		tokens.Forget(pod.UID)
		want("b", "[aud] 4")
		if fmt.Sprint(asked) != "[a b b b]" {
			t.Errorf("asked for %v", asked)
		}
	})
}
