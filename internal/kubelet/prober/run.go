package prober

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"
	remote "k8s.io/cri-client/pkg"
	utilexec "k8s.io/utils/exec"

	"wherry.dev/internal/api/pods"
)

// Runner runs a command in a container; a CRI RuntimeService implements it.
type Runner interface {
	ExecSync(ctx context.Context, id string, cmd []string, timeout time.Duration) (stdout, stderr []byte, err error)
}

type verdict int

const (
	unknown verdict = iota
	success
	failure
	warning // a success with something to report
)

// answer is the outcome of one probe.
type answer struct {
	verdict verdict
	text    string
	err     error // why the probe could not even be made
}

func (a answer) result() string {
	switch a.verdict {
	case success, warning:
		return Successful
	case failure:
		return Failed
	default:
		return Unknown
	}
}

// once makes one probe.
func (m *Manager) once(ctx context.Context, t *target, kind string, p *v1.Probe) answer {
	timeout := seconds(p.TimeoutSeconds, 1)
	switch {
	case p.Exec != nil:
		return m.exec(ctx, t, p.Exec.Command, timeout)
	case p.HTTPGet != nil:
		return m.network.httpGet(ctx, p.HTTPGet, t.spec, t.ip, timeout)
	case p.TCPSocket != nil:
		port, err := pods.Port(p.TCPSocket.Port, t.spec)
		if err != nil {
			return answer{err: err}
		}
		host := p.TCPSocket.Host
		if host == "" {
			host = t.ip
		}
		return m.network.tcpConnect(ctx, host, port, timeout)
	case p.GRPC != nil:
		service := ""
		if p.GRPC.Service != nil {
			service = *p.GRPC.Service
		}
		return m.network.grpcHealth(ctx, t.ip, int(p.GRPC.Port), service, timeout)
	default:
		return answer{err: fmt.Errorf("missing probe handler for %s:%s", kind, t.spec.Name)}
	}
}

const maxOutput = 10 << 10

func (m *Manager) exec(ctx context.Context, t *target, cmd []string, timeout time.Duration) answer {
	stdout, stderr, err := m.runner.ExecSync(ctx, t.id, cmd, timeout)
	text := string(stdout) + string(stderr)
	if len(text) > maxOutput {
		text = text[:maxOutput]
	}
	var exit utilexec.ExitError
	switch {
	case err == nil:
		return answer{verdict: success, text: text}
	case errors.As(err, &exit) && exit.ExitStatus() == 0:
		return answer{verdict: success, text: text}
	case errors.As(err, &exit):
		return answer{verdict: failure, text: text}
	case errors.Is(err, remote.ErrCommandTimedOut), status.Code(err) == codes.DeadlineExceeded, errors.Is(err, context.DeadlineExceeded):
		return answer{verdict: failure, text: fmt.Sprintf("command timed out: %q timed out after %v", strings.Join(cmd, " "), timeout)}
	default:
		return answer{err: err}
	}
}

// tell records events for what went wrong.
func (m *Manager) tell(t *target, kind string, a answer) {
	ref := pods.ContainerRef(t.pod, t.spec.Name)
	switch a.verdict {
	case failure:
		m.events.Eventf(ref, v1.EventTypeWarning, "Unhealthy", "%s probe failed: %s", kind, a.text)
	case warning:
		m.events.Eventf(ref, v1.EventTypeWarning, "ProbeWarning", "%s probe warning: %s", kind, a.text)
	case unknown:
		m.events.Eventf(ref, v1.EventTypeWarning, "Unhealthy", "%s probe errored and resulted in unknown state: %v", kind, a.err)
	}
}
