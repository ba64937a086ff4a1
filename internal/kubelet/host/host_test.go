package host

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
)

func TestKernelThatIsNotSetUpIsRefused(t *testing.T) {
	dir := t.TempDir()
	for name, value := range kernelDefaults {
		path := filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(value+"\n"), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	if err := checkKernel(dir); err != nil {
		t.Error(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "kernel/panic"), []byte("0\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := checkKernel(dir); err == nil || err.Error() != "invalid kernel flag: kernel/panic, expected value: 10, actual value: 0" {
		t.Errorf("%v", err)
	}
}
