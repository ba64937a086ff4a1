// Package component has what every program of the control plane needs that runs alone: leader election, its
// health and metrics over TLS, and systemd's notifications.
package component
