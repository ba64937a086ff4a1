// Package metrics serves metrics.k8s.io: what nodes and the containers of pods use of CPU and memory
// right now, for `kubectl top` and for autoscalers. Answers look as those of metrics-server do.
//
// Nothing is stored, and nothing is measured unless somebody asks. An answer comes from two samples of
// a kubelet's /metrics/resource (history): CPU is the rate between the two, by the times that the
// kubelet gives, and memory is what the later one says. timestamp and window tell which two they were.
// Requests at the same time share the scrapes (Scraper). What has no two samples is left out of lists,
// and not found.
package metrics
