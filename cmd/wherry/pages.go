package main

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// releaseProgram unmaps the pages of the program itself from this process: most of what a start or a burst runs
// through is not used again for long. The pages stay in the page cache as long as there is room, from which a page
// fault maps what is used again; when memory is short, the kernel can take them at once.
func releaseProgram() error {
	mapped, err := programMappings()
	if err != nil {
		return err
	}
	var errs []error
	for _, m := range mapped {
		if _, _, errno := unix.Syscall(unix.SYS_MADVISE, m.start, m.size, unix.MADV_DONTNEED); errno != 0 {
			errs = append(errs, fmt.Errorf("madvise %#x, %d bytes: %w", m.start, m.size, errno))
		}
	}
	return errors.Join(errs...)
}

// mapping is a range of addresses.
type mapping struct{ start, size uintptr }

// programMappings returns where this process has mapped its program and has not written: its code and constants.
func programMappings() ([]mapping, error) {
	program, err := os.Readlink("/proc/self/exe")
	if err != nil {
		return nil, err
	}
	maps, err := os.ReadFile("/proc/self/smaps")
	if err != nil {
		return nil, err
	}
	var out []mapping
	var start, end uintptr // of the mapping that the lines are about; start is 0 if it is not of interest
	for line := range strings.Lines(string(maps)) {
		line = strings.TrimSuffix(line, "\n")
		fields := strings.Fields(line)
		switch {
		case strings.HasPrefix(line, "Anonymous:"):
			// Pages that were written to belong to this process alone, and would be lost.
			if start != 0 && fields[1] == "0" {
				out = append(out, mapping{start, end - start})
			}
		case !strings.HasSuffix(fields[0], ":"):
			var access string
			if _, err := fmt.Sscanf(line, "%x-%x %s", &start, &end, &access); err != nil {
				return nil, fmt.Errorf("/proc/self/smaps: %q: %w", line, err)
			}
			if strings.Contains(access, "w") || !strings.HasSuffix(line, " "+program) {
				start = 0
			}
		}
	}
	return out, nil
}
