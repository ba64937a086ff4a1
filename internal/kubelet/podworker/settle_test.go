package podworker

import (
	"errors"
	"strings"
	"testing"
	"unicode/utf8"

	"wherry.dev/internal/kubelet/podplan"
)

// An image with a stop signal of 3 MiB used to be quoted in the pod's status, which the API server
// then refused: the pod stayed ContainerCreating for ever.
func TestMessageOfAFailureFitsIntoAStatus(t *testing.T) {
	w := &Worker{failures: map[podplan.Key]podplan.Failure{}}
	op := podplan.Op{Kind: podplan.CreateContainer, Name: "main"}
	w.failed(&flight{Flight: podplan.Flight{Op: op}}, podplan.Result{Err: errors.New("begins" + strings.Repeat("ü", 3<<20) + "ends")})
	got := w.failures[op.Key()].Message
	if len(got) > maxMessage+16 || !utf8.ValidString(got) || !strings.HasPrefix(got, "begins") || !strings.HasSuffix(got, "ends") {
		t.Errorf("%d bytes: %.20q", len(got), got)
	}
}
