package main

import (
	"bytes"
	"os"
	"strconv"
	"strings"
	"testing"
)

// TestProgramIsReleasedAndRunsOn unmaps the test's own program, and goes on in it.
func TestProgramIsReleasedAndRunsOn(t *testing.T) {
	mapped, err := programMappings()
	if err != nil || len(mapped) == 0 {
		t.Fatalf("%d mappings, %v", len(mapped), err)
	}
	before := contents(t, mapped) // this also makes all of it resident
	had := residentFilePages(t)
	if err := releaseProgram(); err != nil {
		t.Fatal(err)
	}
	if has := residentFilePages(t); has > had/2 {
		t.Errorf("%d of %d kB are still mapped", has, had)
	}
	if !bytes.Equal(contents(t, mapped), before) {
		t.Error("the program has changed")
	}
}

// contents returns what is in the mappings.
func contents(t *testing.T, mapped []mapping) (out []byte) {
	t.Helper()
	memory, err := os.Open("/proc/self/mem")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := memory.Close(); err != nil {
			t.Error(err)
		}
	})
	for _, m := range mapped {
		part := make([]byte, m.size)
		if _, err := memory.ReadAt(part, int64(m.start)); err != nil {
			t.Fatal(err)
		}
		out = append(out, part...)
	}
	return out
}

// residentFilePages returns RssFile, in kB.
func residentFilePages(t *testing.T) (kB int) {
	t.Helper()
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(status)) {
		if fields := strings.Fields(line); fields[0] == "RssFile:" {
			if kB, err = strconv.Atoi(fields[1]); err != nil {
				t.Fatal(err)
			}
		}
	}
	return kB
}
