package shutdown

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"time"

	basemetrics "k8s.io/component-base/metrics"
	"k8s.io/klog/v2"

	"wherry.dev/internal/kubelet/metrics"
	"wherry.dev/internal/record"
)

// StateFile is the file that says, after the machine has booted again, how its last shutdown went.
// Name and fields are upstream's.
const StateFile = "graceful_node_shutdown_state"

// state is that file, and what is in it.
type state struct {
	path string
	last times
}

type times struct {
	StartTime time.Time `json:"startTime"`
	EndTime   time.Time `json:"endTime"`
}

// load puts the last shutdown into the metrics.
func (s *state) load(ctx context.Context) {
	data, err := os.ReadFile(s.path)
	if errors.Is(err, fs.ErrNotExist) {
		return
	}
	var last times
	if err == nil {
		err = json.Unmarshal(data, &last)
	}
	if err != nil {
		klog.FromContext(ctx).Error(err, "Failed to load graceful shutdown state")
		return
	}
	s.show(last)
}

func (s *state) show(last times) {
	s.last = last
	for gauge, at := range map[*basemetrics.Gauge]time.Time{metrics.ShutdownStart: last.StartTime, metrics.ShutdownEnd: last.EndTime} {
		if at.IsZero() {
			gauge.Set(0)
			continue
		}
		gauge.Set(float64(at.Unix()))
	}
}

// note records how the shutdown goes. If it fails, pods are ended all the same.
func (s *state) note(ctx context.Context, last times) {
	s.show(last)
	data, err := json.Marshal(last)
	if err == nil {
		err = record.WriteFile(s.path, data, 0o644)
	}
	if err != nil {
		klog.FromContext(ctx).Error(err, "Failed to store graceful shutdown state")
	}
}
