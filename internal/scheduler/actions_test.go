package scheduler

import (
	"fmt"
	"testing"

	fwk "k8s.io/kube-scheduler/framework"
)

// TestEverySortOfUpdateIsOneInReports: it took a screen to say that a plugin waits for updates of claims.
func TestEverySortOfUpdateIsOneInReports(t *testing.T) {
	for set, want := range map[fwk.ActionType]string{
		fwk.Add | fwk.Update:            "[Update Add]",
		fwk.All:                         "[Update Add Delete]",
		fwk.Delete | fwk.UpdatePodLabel: "[Delete UpdatePodLabel]",
		fwk.UpdateNodeLabel | fwk.UpdateNodeTaint: "[UpdateNodeLabel UpdateNodeTaint]",
	} {
		if got := fmt.Sprint(actions(set)); got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
}
