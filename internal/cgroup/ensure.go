package cgroup

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	specs "github.com/opencontainers/runtime-spec/specs-go"
)

// Ensure creates the group and its ancestors in every hierarchy that Wherry uses, then writes the
// limits; nil resources leave the limits unchanged. It can be repeated, also on a half-made
// group.
func Ensure(path string, r *specs.LinuxResources) error {
	t, err := system()
	if err != nil {
		return err
	}
	return t.Ensure(path, r)
}

// Ensure is the package's Ensure on this tree.
func (t *Tree) Ensure(path string, r *specs.LinuxResources) error {
	p, err := clean(path)
	if err != nil {
		return err
	}
	for _, h := range t.hierarchies {
		if err := t.create(h, p); err != nil {
			return fmt.Errorf("create cgroup %s: %w", p, err)
		}
	}
	if err := t.applyDevices(p, r); err != nil {
		return fmt.Errorf("limit devices of cgroup %s: %w", p, err)
	}
	return t.apply(p, r)
}

// Update writes the limits of an existing group. It writes only the fields that are
// set, and leaves devices alone.
func Update(path string, r *specs.LinuxResources) error {
	t, err := system()
	if err != nil {
		return err
	}
	return t.Update(path, r)
}

// Update is the package's Update on this tree.
func (t *Tree) Update(path string, r *specs.LinuxResources) error {
	p, err := clean(path)
	if err != nil {
		return err
	}
	if !t.Exists(p) {
		return fmt.Errorf("update cgroup %s: %w", p, fs.ErrNotExist)
	}
	return t.apply(p, r)
}

func (t *Tree) apply(p string, r *specs.LinuxResources) error {
	if r == nil {
		return nil
	}
	var err error
	if t.mode == V2 {
		err = t.applyV2(filepath.Join(t.v2(), p), r)
	} else {
		err = t.applyV1(p, r)
	}
	if err != nil {
		return fmt.Errorf("limit cgroup %s: %w", p, err)
	}
	return nil
}

// create makes the path in one hierarchy, from the top down.
func (t *Tree) create(h hierarchy, p string) error {
	full := filepath.Join(h.dir, p)
	if _, err := os.Stat(full); err == nil && !needsInit(h) {
		return nil
	}
	dir := h.dir
	for name := range strings.SplitSeq(strings.Trim(p, "/"), "/") {
		if h.unified {
			if err := delegate(dir); err != nil {
				return err
			}
		}
		parent := dir
		dir = filepath.Join(dir, name)
		if err := t.mkdir(dir); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
		if needsInit(h) {
			if err := inheritCpuset(parent, dir); err != nil {
				return err
			}
		}
	}
	return nil
}

// needsInit reports whether a new group of the hierarchy is unusable until its cpuset is filled
// in.
func needsInit(h hierarchy) bool {
	return slices.Contains(h.controllers, "cpuset")
}

// inheritCpuset fills an empty v1 cpuset from its parent; until then no process can join it.
func inheritCpuset(parent, dir string) error {
	for _, f := range []string{"cpuset.cpus", "cpuset.mems"} {
		have, err := os.ReadFile(filepath.Join(dir, f))
		if err != nil {
			return err
		}
		if len(bytes.TrimSpace(have)) > 0 {
			continue
		}
		want, err := os.ReadFile(filepath.Join(parent, f))
		if err != nil {
			return err
		}
		if err := write(dir, f, string(bytes.TrimSpace(want))); err != nil {
			return err
		}
	}
	return nil
}

// delegate enables all of dir's controllers for its children (v2).
func delegate(dir string) error {
	have, err := os.ReadFile(filepath.Join(dir, "cgroup.controllers"))
	if err != nil {
		return err
	}
	on, err := os.ReadFile(filepath.Join(dir, "cgroup.subtree_control"))
	if err != nil {
		return err
	}
	enabled := map[string]bool{}
	for c := range strings.FieldsSeq(string(on)) {
		enabled[c] = true
	}
	var missing []string
	for c := range strings.FieldsSeq(string(have)) {
		if !enabled[c] {
			missing = append(missing, "+"+c)
		}
	}
	if len(missing) == 0 {
		return nil
	}
	if err := write(dir, "cgroup.subtree_control", strings.Join(missing, " ")); err != nil {
		return fmt.Errorf("%w (processes in %s itself must move to a child group first)", err, dir)
	}
	return nil
}

// write sets one control file. The kernel accepts a value in one write or not at all.
func write(dir, file, value string) error {
	f, err := os.OpenFile(filepath.Join(dir, file), os.O_WRONLY|os.O_TRUNC, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(value)
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		return fmt.Errorf("write %q: %w", value, err)
	}
	return nil
}
