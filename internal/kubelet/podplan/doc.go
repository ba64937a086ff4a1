// Package podplan decides, for one pod, what to do next and what to report. It is pure: no clock,
// no I/O, no goroutine, no memory. Everything that a decision depends on is in an Input, so that
// any moment of a pod's life can be written to a file and fed to a test.
//
// It guarantees, whatever the input: no second live instance of a container, no app container
// before its init containers are done, nothing started once the pod is ending, restart counts that
// never fall, and a terminal phase that is reported only when nothing runs and is never taken back.
//
// The pod's worker (package podworker) is its only caller in production.
package podplan
