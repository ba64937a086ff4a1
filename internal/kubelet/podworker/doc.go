// Package podworker runs one actor for each pod of the node. An actor observes,
// asks package podplan what to do, starts and cancels ops, and waits for a wake:
//
//	in   := observe()          desired, runtime, volumes, probes, record, ops in flight
//	plan := podplan.Next(in)   pure
//	status.Put(podplan.Status) latest wins
//	start new ops, cancel those that the plan dropped
//	wait for: wake | op done | RecheckAt | stop
//
// It guarantees that at most one op per key is in flight, that the record is on disk before the
// effect that it describes, and that stopping the kubelet leaves the containers running. A wake
// carries nothing but the pod's UID: the actor looks again, so that a lost or repeated wake costs
// only time.
//
// Package kubelet owns the Table and feeds it; package podops executes.
package podworker
