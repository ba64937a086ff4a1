package dra

import (
	"strconv"
	"time"

	"google.golang.org/grpc/status"

	"wherry.dev/internal/kubelet/metrics"
)

// observe notes how long all claims of a pod took.
func observe(operation string, err error, took time.Duration) {
	metrics.DRAOperations.WithLabelValues(operation, strconv.FormatBool(err != nil)).Observe(took.Seconds())
}

// observeCall notes how long a driver took.
func observeCall(driver, method string, err error, took time.Duration) {
	metrics.DRACalls.WithLabelValues(driver, method, status.Code(err).String()).Observe(took.Seconds())
}
