package apiserver

import (
	"bufio"
	"bytes"
	"strconv"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// series returns the value of each series that /metrics shows.
func series(t *testing.T, s *Server) map[string]float64 {
	t.Helper()
	text, err := admin(t, s).Discovery().RESTClient().Get().AbsPath("/metrics").DoRaw(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]float64{}
	for lines := bufio.NewScanner(bytes.NewReader(text)); lines.Scan(); {
		i := strings.LastIndexByte(lines.Text(), ' ')
		if value, err := strconv.ParseFloat(lines.Text()[i+1:], 64); err == nil && i > 0 {
			out[lines.Text()[:i]] = value
		}
	}
	return out
}

// Each built-in plugin is measured, and all of them together, as upstream measures them.
func TestAdmissionIsMeasured(t *testing.T) {
	const each, all = "apiserver_admission_controller_admission_duration_seconds_count", "apiserver_admission_step_admission_duration_seconds_count"
	s := start(t)
	before := series(t, s)
	if _, err := admin(t, s).CoreV1().Pods("default").Create(t.Context(), testPod("p"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	lost := testPod("p")
	lost.Namespace = "absent"
	if _, err := admin(t, s).CoreV1().Pods("absent").Create(t.Context(), lost, metav1.CreateOptions{}); err == nil {
		t.Fatal("a pod in a namespace that does not exist")
	}
	after := series(t, s)
	for _, name := range []string{
		each + `{name="ServiceAccount",operation="CREATE",rejected="false",type="admit"}`,
		each + `{name="ServiceAccount",operation="CREATE",rejected="false",type="validate"}`,
		each + `{name="ResourceQuota",operation="CREATE",rejected="false",type="validate"}`,
		each + `{name="NamespaceLifecycle",operation="CREATE",rejected="true",type="admit"}`,
		all + `{operation="CREATE",rejected="false",type="admit"}`,
		all + `{operation="CREATE",rejected="false",type="validate"}`,
		all + `{operation="CREATE",rejected="true",type="admit"}`,
	} {
		if after[name] <= before[name] {
			t.Errorf("%s: %v, and %v after the requests", name, before[name], after[name])
		}
	}
}
