package component

import (
	"strings"
	"testing"

	"github.com/spf13/cobra"
	logsapi "k8s.io/component-base/logs/api/v1"
	"k8s.io/component-base/metrics"
	"k8s.io/klog/v2"
)

func TestCommonFlags(t *testing.T) {
	t.Cleanup(func() {
		if err := logsapi.ResetForTest(nil); err != nil {
			t.Error(err)
		}
	})
	cmd := &cobra.Command{Use: "thing"}
	c := AddCommon(cmd, NoEffect{})
	if err := cmd.ParseFlags([]string{"--v=3", "--disabled-metrics=gone_total"}); err != nil {
		t.Fatal(err)
	}
	if klog.V(3).Enabled() {
		t.Error("the log is verbose already")
	}
	if err := c.Apply(t.Context()); err != nil {
		t.Fatal(err)
	}
	if !klog.V(3).Enabled() || klog.V(4).Enabled() {
		t.Error("the log is not of verbosity 3")
	}
	registry := metrics.NewKubeRegistry()
	registry.MustRegister(metrics.NewCounter(&metrics.CounterOpts{Name: "gone_total"}))
	stays := metrics.NewCounter(&metrics.CounterOpts{Name: "stays_total"})
	registry.MustRegister(stays)
	stays.Inc()
	families, err := registry.Gather()
	if err != nil || len(families) != 1 || families[0].GetName() != "stays_total" {
		t.Errorf("metrics: %v %v", families, err)
	}
}

func TestCommonFlagsThatAreWrong(t *testing.T) {
	for flag, want := range map[string]string{
		"--logging-format=xml":                      "xml",
		"--show-hidden-metrics-for-version=nothing": "showHiddenMetricsForVersion",
		"--emulated-version=1.36":                   "--emulated-version 1.36 cannot be granted",
	} {
		cmd := &cobra.Command{Use: "thing"}
		c := AddCommon(cmd, Emulation)
		if err := cmd.ParseFlags([]string{flag}); err != nil {
			t.Fatal(err)
		}
		if err := c.Apply(t.Context()); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", flag, err)
		}
	}
}
