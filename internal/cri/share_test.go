package cri

import (
	"strconv"
	"strings"
	"testing"
)

// A container may write to the files of /etc that its pod shares. They used to be on the file
// system of the runtime's own state, which one container could fill, with half of the machine's
// memory.
func TestFilesOfEtcCannotFillTheRunDir(t *testing.T) {
	eachRuntime(t, func(t *testing.T, n *node) {
		p := n.pod()
		out, st := p.output(containerConfig("hog", "sh", "-c", `df -m /dev/shm | tail -1 | awk '{print $2}'
			for f in hosts hostname resolv.conf; do
				head -c 100000000 /dev/zero >> /etc/$f; wc -c < /etc/$f
			done`))
		fields := strings.Fields(out)
		if len(fields) != 4 {
			t.Fatalf("%q (%s)", out, logText(t, st.GetLogPath(), "stderr"))
		}
		sum := 0
		for i, f := range fields {
			size, err := strconv.Atoi(f)
			if err != nil {
				t.Fatal(err)
			}
			if i == 0 && size != 64 {
				t.Errorf("/dev/shm has %d MiB", size)
			}
			if i > 0 {
				sum += size
			}
		}
		if sum > 64<<20 {
			t.Errorf("%d bytes went into files of /etc: %s", sum, out)
		}
	})
}
