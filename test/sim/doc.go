// Package sim plays whole lives of pods in virtual time and checks the invariants of every one of
// them. It is for tests only.
//
// A life has the real worker, plan, executors, probes, static pods and status writer (podworker,
// podplan, podops, prober, staticpod, status) on a simulated runtime, network, API server and user.
// Calls take long, fail before or after they took effect, or hang. Events get lost or come twice.
// The kubelet is killed in the middle of any call and comes back with nothing but its records. The
// machine reboots. The pod's spec changes; the pod is deleted, once or twice, gracefully or by
// force; a manifest is replaced, or removed and put back. Then the faults stop, and everything must
// come to rest. In the end the pod is deleted, and nothing may be left.
// the end the pod is deleted, and nothing may be left.
//
// Play plays the life of one seed. Everything that is drawn at random depends on the seed and on
// its purpose, not on the order of goroutines, so that a seed plays the same life again. What
// happens is a history of Events; a Checker reads it and knows the invariants.
package sim
