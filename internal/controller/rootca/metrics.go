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

// syncs are metrics of looks at something, under upstream's names. The code is that of the API server's answer: 200, if
// nothing went wrong.
type syncs struct {
	total *metrics.CounterVec
	time  *metrics.HistogramVec
}

var (
	mapSyncs    = newSyncs("root_ca_cert_publisher", "a namespace by the publisher of the root CA")
	bundleSyncs = newSyncs("clustertrustbundle_publisher", "the bundle of the API server's authority")
)

func newSyncs(subsystem, what string) syncs {
	s := syncs{
		metrics.NewCounterVec(&metrics.CounterOpts{
			Subsystem: subsystem, Name: "sync_total", StabilityLevel: metrics.ALPHA, Help: "Looks at " + what + ".",
		}, []string{"code"}),
		metrics.NewHistogramVec(&metrics.HistogramOpts{
			Subsystem: subsystem, Name: "sync_duration_seconds", StabilityLevel: metrics.ALPHA,
			Help:    "Time of one look at " + what + ", in seconds.",
			Buckets: metrics.ExponentialBuckets(0.001, 2, 15),
		}, []string{"code"}),
	}
	legacyregistry.MustRegister(s.total, s.time)
	return s
}

func (s syncs) count(began time.Time, err error) {
	code := http.StatusOK
	if err != nil {
		code = http.StatusInternalServerError
		if status := apierrors.APIStatus(nil); errors.As(err, &status) {
			code = int(status.Status().Code)
		}
	}
	s.total.WithLabelValues(strconv.Itoa(code)).Inc()
	s.time.WithLabelValues(strconv.Itoa(code)).Observe(time.Since(began).Seconds())
}
