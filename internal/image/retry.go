package image

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"

	remoteerrors "github.com/containerd/containerd/v2/core/remotes/errors"
	"golang.org/x/sys/unix"
)

const (
	// attempts is how often something is tried without progress.
	attempts = 5
	// firstBackOff doubles with every attempt: 0.25 s, 0.5 s, 1 s, 2 s.
	firstBackOff = 250 * time.Millisecond
)

// retry calls fn until it succeeds, fails for good, or has failed too often in a row without
// progress. fn returns whether it got any further.
func retry(ctx context.Context, fn func() (progress bool, err error)) error {
	for failed := 1; ; failed++ {
		progress, err := fn()
		if err == nil || ctx.Err() != nil || !transient(err) {
			return err
		}
		if progress {
			failed = 1
		}
		if failed == attempts {
			return fmt.Errorf("gave up after %d attempts: %w", attempts, err)
		}
		if serr := sleep(ctx, firstBackOff<<(failed-1)); serr != nil {
			return serr
		}
	}
}

// transient reports whether another attempt may avoid the error.
func transient(err error) bool {
	if status, ok := errors.AsType[remoteerrors.ErrUnexpectedStatus](err); ok {
		return status.StatusCode >= 500 || status.StatusCode == http.StatusTooManyRequests || status.StatusCode == http.StatusRequestTimeout
	}
	if netErr, ok := errors.AsType[net.Error](err); ok && netErr.Timeout() {
		return true
	}
	for _, e := range []error{errStalled, io.ErrUnexpectedEOF, io.EOF, unix.ECONNRESET, unix.EPIPE, unix.ETIMEDOUT} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// Unavailable reports whether a pull failed because the registry did not answer, or could not;
// its actual answers (no such image, not allowed) do not count.
func Unavailable(err error) bool {
	if _, ok := errors.AsType[*net.DNSError](err); ok {
		return true
	}
	for _, e := range []error{unix.ECONNREFUSED, unix.EHOSTUNREACH, unix.ENETUNREACH} {
		if errors.Is(err, e) {
			return true
		}
	}
	return transient(err)
}
