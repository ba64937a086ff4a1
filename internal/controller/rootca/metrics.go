package rootca

import (
	"errors"
	"net/http"
	"strconv"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/legacyregistry"
)

// Metrics under upstream's names. The code is that of the API server's answer: 200, if nothing went wrong.
var (
	syncs = metrics.NewCounterVec(&metrics.CounterOpts{
		Subsystem: "root_ca_cert_publisher", Name: "sync_total", StabilityLevel: metrics.ALPHA,
		Help: "Looks at namespaces by the publisher of the root CA.",
	}, []string{"code"})
	syncDuration = metrics.NewHistogramVec(&metrics.HistogramOpts{
		Subsystem: "root_ca_cert_publisher", Name: "sync_duration_seconds", StabilityLevel: metrics.ALPHA,
		Help:    "Time of one look at a namespace by the publisher of the root CA, in seconds.",
		Buckets: metrics.ExponentialBuckets(0.001, 2, 15),
	}, []string{"code"})
)

func init() { legacyregistry.MustRegister(syncs, syncDuration) }

func count(began time.Time, err error) {
	code := http.StatusOK
	if err != nil {
		code = http.StatusInternalServerError
		if status := apierrors.APIStatus(nil); errors.As(err, &status) {
			code = int(status.Status().Code)
		}
	}
	syncs.WithLabelValues(strconv.Itoa(code)).Inc()
	syncDuration.WithLabelValues(strconv.Itoa(code)).Observe(time.Since(began).Seconds())
}
