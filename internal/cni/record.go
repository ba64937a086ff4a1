package cni

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/containernetworking/cni/libcni"

	"wherry.dev/internal/record"
)

// attached is the record of an attachment, written before ADD and removed after DEL. With it, a
// pod leaves the network that it joined, using the configuration of that time, whatever became of
// the folder, the plugins' cached result or Wherry since then.
//
//	(none) ── before ADD ──▶ attached ── DEL ──▶ (none)
//	                            └── DEL hung, or the sandbox was lost ──▶ abandoned ── DEL by GC ──▶ (none)
type attached struct {
	Pod       Pod             `json:"pod"`
	Config    json.RawMessage `json:"config"`
	Abandoned bool            `json:"abandoned,omitempty"`
}

func (cfg PluginsConfig) recordDir() string { return filepath.Join(cfg.CacheDir, "attachments") }

func (cfg PluginsConfig) recordPath(id string) string {
	return filepath.Join(cfg.recordDir(), id+".json")
}

func (cfg PluginsConfig) storeAttached(a attached) error {
	if err := os.MkdirAll(cfg.recordDir(), 0o700); err != nil {
		return err
	}
	return record.Write(cfg.recordPath(a.Pod.ID), 1, a)
}

// readAttached returns a record with the chain that it was made with. The error is fs.ErrNotExist
// if there is none, or a *record.CorruptError if it cannot be used.
func (cfg PluginsConfig) readAttached(id string) (attached, *chain, error) {
	var a attached
	path := cfg.recordPath(id)
	if _, err := record.Read(path, &a); err != nil {
		return a, nil, err
	}
	list, err := libcni.NetworkConfFromBytes(a.Config)
	if err != nil {
		return a, nil, &record.CorruptError{Path: path, Err: err}
	}
	list.Bytes = a.Config
	if a.Pod.ID != id {
		return a, nil, &record.CorruptError{Path: path, Err: fmt.Errorf("it belongs to sandbox %q", a.Pod.ID)}
	}
	return a, newChain(cfg, list), nil
}

func (cfg PluginsConfig) forget(id string) error { return record.Remove(cfg.recordPath(id)) }

// attachedIDs lists the sandboxes that have a record.
func (cfg PluginsConfig) attachedIDs() ([]string, error) {
	if cfg.CacheDir == "" {
		return nil, nil
	}
	entries, err := os.ReadDir(cfg.recordDir())
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read network records: %w", err)
	}
	var ids []string
	for _, e := range entries {
		if id, ok := strings.CutSuffix(e.Name(), ".json"); ok && !strings.HasPrefix(id, ".") {
			ids = append(ids, id)
		}
	}
	return ids, nil
}
