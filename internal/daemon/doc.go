// Package daemon puts a node together: it is the only package that imports every component. It
// starts them by plain constructor calls, in the order in which they need each other, and stops
// them in the reverse order. Containers outlive it.
//
// `wherry up` runs a Daemon; `wherry down` calls Down, which takes the pods of an
// instance down whether its daemon is still running or was killed.
package daemon
