package criconfig

import (
	"bufio"
	"fmt"
	"io"
	"strings"
)

// EnvFileValue finds a key in an environment file (KEP-3721): lines of the form KEY='value', where
// the quoted value may span several lines, blank lines and comments. An empty value counts as none.
// An error before the key makes the file unusable.
func EnvFileValue(r io.Reader, key string) (string, error) {
	sc := bufio.NewScanner(r)
	number := 0
	bad := func(line int, what string) error {
		return fmt.Errorf("invalid environment variable format at line %d: %s", line, what)
	}
	for sc.Scan() {
		number++
		line := strings.TrimLeft(sc.Text(), " \t")
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		name, value, ok := strings.Cut(line, "=")
		switch trimmed := strings.TrimRight(name, " \t"); {
		case !ok:
			return "", bad(number, "missing '='")
		case trimmed == "":
			return "", bad(number, "empty variable name")
		case trimmed != name:
			return "", bad(number, "whitespace before '=' is not allowed")
		case strings.TrimLeft(value, " \t") != value:
			value = "''" // as in a shell, KEY= 'x' leaves KEY empty
		case !strings.HasPrefix(value, "'"):
			return "", bad(number, "value must be enclosed in single quotes")
		}
		text, after, closed := strings.Cut(value[1:], "'")
		for first := number; !closed; number++ {
			if !sc.Scan() {
				return "", bad(first, "unclosed single quote")
			}
			var more string
			more, after, closed = strings.Cut(sc.Text(), "'")
			text += "\n" + more
		}
		if after = strings.TrimLeft(after, " \t"); after != "" && !strings.HasPrefix(after, "#") {
			return "", bad(number, "unexpected content after closing quote")
		}
		if name == key {
			return text, nil
		}
	}
	return "", sc.Err()
}
