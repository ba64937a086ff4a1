package oci

import (
	"fmt"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Real-time signals as programs see them (signal(7)): the C library keeps the kernel's first two
// to itself.
const (
	sigRTMin = 34
	sigRTMax = 64
)

// aliases are names that the kernel's table lacks; CRI and images use some of them.
var aliases = map[string]unix.Signal{
	"SIGCLD": unix.SIGCHLD, "SIGPOLL": unix.SIGIO, "SIGIOT": unix.SIGABRT, "SIGUNUSED": unix.SIGSYS,
}

// ParseSignal parses a signal as images and CRI write it: TERM, SIGTERM, 15,
// SIGRTMIN+3, RTMINPLUS3.
func ParseSignal(s string) (unix.Signal, error) {
	if n, err := strconv.Atoi(s); err == nil {
		if n < 1 || n > sigRTMax {
			return 0, fmt.Errorf("signal %d is out of range", n)
		}
		return unix.Signal(n), nil
	}
	name := strings.ToUpper(s)
	if !strings.HasPrefix(name, "SIG") {
		name = "SIG" + name
	}
	if n := unix.SignalNum(name); n != 0 {
		return n, nil
	}
	if n, ok := aliases[name]; ok {
		return n, nil
	}
	name = strings.NewReplacer("PLUS", "+", "MINUS", "-").Replace(name)
	for base, first := range map[string]int{"SIGRTMIN": sigRTMin, "SIGRTMAX": sigRTMax} {
		rest, ok := strings.CutPrefix(name, base)
		if !ok {
			continue
		}
		offset := 0
		if rest != "" {
			var err error
			if offset, err = strconv.Atoi(rest); err != nil {
				break
			}
		}
		if n := first + offset; n >= sigRTMin && n <= sigRTMax {
			return unix.Signal(n), nil
		}
	}
	return 0, fmt.Errorf("unknown signal %q", s)
}

// SignalName returns the canonical name: SIGTERM, SIGRTMIN+3.
func SignalName(n unix.Signal) string {
	if name := unix.SignalName(n); name != "" {
		return name
	}
	if n >= sigRTMin && n <= sigRTMax {
		return fmt.Sprintf("SIGRTMIN+%d", int(n)-sigRTMin)
	}
	return strconv.Itoa(int(n))
}
