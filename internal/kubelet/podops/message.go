package podops

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"wherry.dev/internal/kubelet/criconfig"
	"wherry.dev/internal/kubelet/logs"
	"wherry.dev/internal/kubelet/podplan"
)

// How much of a log stands in for a termination message.
const (
	maxLogBytes = 2048
	maxLogLines = 80

	// reasonCannotRun is the runtime's reason for a container that never ran: it has no log.
	reasonCannotRun = "ContainerCannotRun"
)

// FinalMessage returns a dead instance's termination message: the end of its file or, if its policy
// says so, of its log.
func (o *Ops) FinalMessage(uid types.UID, c *podplan.Container, policy v1.TerminationMessagePolicy, logPath string) string {
	msg, err := readEnd(o.Dirs.MessageFile(uid, c.Name, c.Attempt), criconfig.MaxMessage)
	if err != nil {
		return fmt.Sprintf("Error on reading termination log: %v", err)
	}
	if msg != "" || c.ExitCode == 0 || c.Reason == reasonCannotRun || policy != v1.TerminationMessageFallbackToLogsOnError {
		return msg
	}
	return logs.Tail(logPath, c.ID, maxLogLines, maxLogBytes)
}

// readEnd returns the last bytes of a file; nothing if there is no such file.
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
