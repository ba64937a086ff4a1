// Package scheduler finds a node for every pod that has none.
//
// Its inputs are two watches, of pods and of nodes; its only effects are a pod's binding, its
// PodScheduled condition and its events. One goroutine takes pods off the queue and decides, one at
// a time, on a snapshot of the cache. Bindings then run concurrently, while the next decision
// already counts their pods as placed.
//
// A pod that fits nowhere waits in the queue until an event comes that, according to the plugins
// that rejected it, may help.
package scheduler
