package server

import (
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"wherry.dev/internal/kubelet/metrics"
)

// buckets are the paths by which requests are counted; all others count as "other".
var buckets = []string{
	"attach", "checkpoint", "configz", "containerLogs", "debug", "exec", "flagz", "healthz", "logs", "metrics", "metrics/cadvisor",
	"metrics/probes", "metrics/resource", "pods", "portForward", "run", "runningpods", "stats", "statusz",
}

var methods = []string{"OPTIONS", "GET", "HEAD", "POST", "PUT", "DELETE", "TRACE", "CONNECT"}

// measured counts and times requests, with upstream's labels.
func measured(server string, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		path, method := bucket(r.URL.Path), r.Method
		if !slices.Contains(methods, method) {
			method = "other"
		}
		long := strconv.FormatBool(slices.Contains([]string{"exec", "attach", "portForward", "debug"}, path))
		metrics.HTTPRequests.WithLabelValues(method, path, server, long).Inc()
		inflight := metrics.HTTPInflight.WithLabelValues(method, path, server, long)
		inflight.Inc()
		began := time.Now()
		defer func() {
			inflight.Dec()
			metrics.HTTPDuration.WithLabelValues(method, path, server, long).Observe(time.Since(began).Seconds())
		}()
		next.ServeHTTP(w, r)
	})
}

// bucket returns the first part of a path or, for metrics, the first two.
func bucket(path string) string {
	parts := strings.SplitN(strings.TrimPrefix(path, "/"), "/", 3)
	name := parts[0]
	if name == "metrics" && len(parts) > 1 && parts[1] != "" {
		name += "/" + parts[1]
	}
	if slices.Contains(buckets, name) {
		return name
	}
	return "other"
}
