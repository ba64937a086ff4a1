package volume

import (
	"errors"
	"fmt"
	"reflect"
	"strings"
)

// Failure is why a volume is not set up, in upstream's words.
type Failure struct {
	// Reason of the event.
	Reason string
	// Early: it may be a moment too early. The claim's status is written after the pod was given its node.
	Early bool
	err   error
}

func (f *Failure) Error() string { return f.err.Error() }

// Unwrap returns what happened.
func (f *Failure) Unwrap() error { return f.err }

// failedAt names the step that failed, if it is not the setting up itself.
type failedAt struct {
	step string
	err  error
}

func (f *failedAt) Error() string { return f.err.Error() }
func (f *failedAt) Unwrap() error { return f.err }

// failed says which volume could not be set up, and what for; nil if err is nil. A PersistentVolume has its own name.
func failed(s *spec, err error) error {
	if err == nil {
		return nil
	}
	if f, ok := errors.AsType[*Failure](err); ok { // it says so already
		return f
	}
	name, step, reason := s.name, "MountVolume.SetUp failed", "FailedMount"
	if s.pv != nil {
		name = s.pv.Name
	}
	if s.block {
		step, reason = "MapVolume.MapPodDevice failed", "FailedMapVolume"
	}
	if at, ok := err.(*failedAt); ok { //nolint:errorlint // it is the outermost, or it is not of this step
		step = at.step
	}
	return &Failure{Reason: reason, err: fmt.Errorf("%s for volume %q : %w", step, name, err)}
}

// unprocessed is failed for a claim whose volume is not known.
func unprocessed(name string, err error) error {
	if err == nil {
		return nil
	}
	const text = "Unable to attach or mount volumes: unmounted volumes=[%s], unattached volumes=[], failed to process volumes=[%s]: %w"
	return &Failure{Reason: "FailedMount", Early: true, err: fmt.Errorf(text, name, name, err)} //nolint:staticcheck // upstream's words
}

func unsupported(s *spec) error {
	return fmt.Errorf("volumes of this kind (%s) are not supported by this node", sourceOf(s))
}

// sourceOf names the kind of a volume as the API does.
func sourceOf(s *spec) string {
	src := reflect.ValueOf(s.own).Elem()
	if s.pv != nil {
		src = reflect.ValueOf(&s.pv.Spec.PersistentVolumeSource).Elem()
	}
	for i := range src.NumField() {
		if !src.Field(i).IsNil() {
			name, _, _ := strings.Cut(src.Type().Field(i).Tag.Get("json"), ",")
			return name
		}
	}
	return "none"
}
