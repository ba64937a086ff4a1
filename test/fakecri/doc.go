// Package fakecri is a container runtime in memory, for tests of the kubelet: it
// has sandboxes, containers, images, events, delays and errors, and no processes.
// It runs in virtual time under testing/synctest.
//
// It also watches over the kubelet: Violations lists what no kubelet may do, such as run two live
// instances of one container.
package fakecri
