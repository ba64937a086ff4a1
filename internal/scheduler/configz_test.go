package scheduler

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"reflect"
	"testing"

	configv1 "k8s.io/kube-scheduler/config/v1"
)

// TestTheEffectiveConfigurationIsOneThatCanBeRead and means the same.
func TestTheEffectiveConfigurationIsOneThatCanBeRead(t *testing.T) {
	const file = `
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
parallelism: 3
podMaxBackoffSeconds: 20
enableProfiling: false
leaderElection: {leaderElect: false}
profiles:
- schedulerName: mine
  plugins: {score: {disabled: [{name: "*"}]}}
  pluginConfig: [{name: NodeResourcesFit, args: {scoringStrategy: {type: MostAllocated, resources: [{name: cpu, weight: 1}]}}}]
`
	dir := t.TempDir()
	read := func(name string, data []byte) Config {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
		c, warnings, err := LoadConfig(path)
		if err != nil || len(warnings) > 0 {
			t.Fatalf("%v, %v:\n%s", err, warnings, data)
		}
		return c
	}
	byDefault := DefaultConfig()
	asked := read("asked", []byte(file))
	for name, c := range map[string]*Config{"default": &byDefault, "asked": &asked} {
		w := httptest.NewRecorder()
		c.Configz(w, httptest.NewRequest(http.MethodGet, "/configz", http.NoBody))
		var shown struct {
			Componentconfig json.RawMessage `json:"componentconfig"`
		}
		if err := json.Unmarshal(w.Body.Bytes(), &shown); err != nil {
			t.Fatal(err)
		}
		again := read(name, shown.Componentconfig)
		if again.Parallelism != c.Parallelism || again.NoProfiling != c.NoProfiling || again.LeaderElection != c.LeaderElection || len(again.Profiles) != 1 {
			t.Errorf("%s: %s", name, shown.Componentconfig)
		}
		if got := again.Effective(); !reflect.DeepEqual(got.Profiles[0].Plugins.Filter, c.Effective().Profiles[0].Plugins.Filter) {
			t.Errorf("%s: what was read back has other filters", name)
		}
	}
	if e := asked.Effective(); *e.PodMaxBackoffSeconds != 20 || *e.PodInitialBackoffSeconds != 1 || len(e.Profiles[0].PluginConfig) != 1 {
		t.Errorf("%+v", e)
	}
	if e := asked.Effective(); e.APIVersion != configv1.SchemeGroupVersion.String() || *e.EnableProfiling {
		t.Errorf("%+v", e)
	}
}
