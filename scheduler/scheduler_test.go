package scheduler

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	cliflag "k8s.io/component-base/cli/flag"

	"wherry.dev/internal/scheduler"
	"wherry.dev/test/panics"
)

func TestMain(m *testing.M) { os.Exit(panics.Watch(m).Run()) }

// TestGates: the gate that an error asks for did not exist.
func TestGates(t *testing.T) {
	file := filepath.Join(t.TempDir(), "config.yaml")
	doc := "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n"
	if err := os.WriteFile(file, []byte(doc), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		gates, file string
		want        bool
	}{
		"on":                    {"GenericWorkload=true", "", true},
		"on, with a file":       {"GenericWorkload=true", file, true},
		"on, of a component":    {"kube:GenericWorkload=true", "", true},
		"off":                   {"GenericWorkload=false", "", false},
		"others have no effect": {"OpportunisticBatching=false,GenericWorkload=true", "", true},
	} {
		o, cfg := schedulerOptions{master: "http://localhost", file: tc.file}, scheduler.DefaultConfig()
		flags := NewCommand().Flags()
		err := errors.Join(cliflag.NewMapStringBool(&o.gates).Set(tc.gates), flags.Set("feature-gates", tc.gates),
			o.load(t.Context(), flags, &cfg))
		if err != nil || cfg.PodGroups != tc.want {
			t.Errorf("%s: %t, %v", name, cfg.PodGroups, err)
		}
	}
}

func TestConfigIsWrittenAsItIsRead(t *testing.T) {
	written := filepath.Join(t.TempDir(), "config.yaml")
	cmd := NewCommand()
	cmd.SetArgs([]string{"--master=http://localhost", "--write-config-to=" + written, "--contention-profiling=false", "--leader-elect=false"})
	if err := cmd.ExecuteContext(t.Context()); err != nil {
		t.Fatal(err)
	}
	again, _, err := scheduler.LoadConfig(written)
	if err != nil || again.ContentionProfiling || again.NoProfiling || again.LeaderElection.LeaderElect || len(again.Profiles) != 1 {
		t.Errorf("%+v, %v", again, err)
	}
	cmd = NewCommand()
	cmd.SetArgs([]string{"--master=http://localhost", "--write-config-to=" + filepath.Join(written, "below")})
	cmd.SilenceUsage, cmd.SilenceErrors = true, true
	if err := cmd.ExecuteContext(t.Context()); err == nil {
		t.Error("a file below a file was written")
	}
}
