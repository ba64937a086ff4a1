package failpoint

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var calls = regexp.MustCompile(`\bfailpoint(?:\.At)?\("([^"]+)"\)`)

// Every failpoint must be one at which some test kills a process; those tests fail if it is not
// reached.
func TestEveryFailpointIsNamedByATest(t *testing.T) {
	where := map[string]string{}
	var tests strings.Builder
	err := filepath.WalkDir("..", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") {
			return err
		}
		doc, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		if strings.HasSuffix(path, "_test.go") {
			tests.Write(doc)
			return nil
		}
		for _, m := range calls.FindAllStringSubmatch(string(doc), -1) {
			where[m[1]] = path
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(where) < 40 {
		t.Errorf("only %d failpoints were found", len(where))
	}
	for name, path := range where {
		if !strings.Contains(tests.String(), `"`+name+`"`) {
			t.Errorf("%s: no test kills the process at %q", path, name)
		}
	}
}
