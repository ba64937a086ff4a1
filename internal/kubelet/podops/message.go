package podops

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"

	v1 "k8s.io/api/core/v1"

	"wherry.dev/internal/api/pods"
	"wherry.dev/internal/kubelet/logs"
	"wherry.dev/internal/kubelet/podconfig"
	"wherry.dev/internal/kubelet/podplan"
)

// What is taken of a log in place of a termination message.
const (
	maxLogBytes = 2048
	maxLogLines = 80

	// reasonCannotRun is the runtime's, of a container that never ran: it has no log.
	reasonCannotRun = "ContainerCannotRun"
)

// FinalMessage reads a dead instance's termination message: the end of its file, or
// where the pod asks for it, of its log.
func (o *Ops) FinalMessage(pod *v1.Pod, c *podplan.Container, logPath string) string {
	msg, err := readEnd(o.Dirs.MessageFile(pod.UID, c.Name, c.Attempt), podconfig.MaxMessage)
	if err != nil {
		return fmt.Sprintf("Error on reading termination log: %v", err)
	}
	spec := pods.FindContainer(pod, c.Name)
	if msg != "" || spec == nil || c.ExitCode == 0 || c.Reason == reasonCannotRun || spec.TerminationMessagePolicy != v1.TerminationMessageFallbackToLogsOnError {
		return msg
	}
	return logs.Tail(logPath, maxLogLines, maxLogBytes)
}

// readEnd returns the last bytes of a file; one that is not there has none.
func readEnd(path string, most int64) (string, error) {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	defer func() { _ = f.Close() }()
	info, err := f.Stat()
	if err != nil {
		return "", err
	}
	data, err := io.ReadAll(io.NewSectionReader(f, max(info.Size()-most, 0), most))
	return string(data), err
}
