// Package sim plays whole lives of pods in virtual time and checks what must hold of
// every one of them. It is for tests only.
//
// A life has the real worker, plan, executors, probes, static pods and status writer
// (podworker, podplan, podops, prober, staticpod, status) on a runtime, a network, an
// API server and a user that are made up: calls take long, fail before or after they
// took effect, hang; events get lost or come twice; the kubelet is killed in the middle
// of any call and comes back with nothing but its records; the machine reboots; the
// pod's spec changes, it is deleted, once or twice, gracefully or by force; a manifest
// is replaced, or removed and put back. Then the faults stop, and everything must come to rest; in
// the end the pod is deleted, and nothing may be left.
//
// Play plays the life of one seed. Everything that is drawn by lot depends on the seed
// and on what it is drawn for, not on the order of goroutines, so that a seed plays
// the same life again. What happens is a history of Events; a Checker reads it and
// knows the invariants.
package sim
