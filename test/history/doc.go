// Package history plays with two API servers on an etcd of three members while all of them are killed, records
// what clients saw, and checks it: no acknowledged write is lost, no event of a watch is lost, doubled or out of
// order, no consistent read is old, and there are never two leaders.
package history
