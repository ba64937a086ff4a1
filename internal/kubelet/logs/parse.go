// Package logs reads and rotates the logs of containers in the CRI format: a line for each piece of
// output, with its time, its stream and whether it ends a line.
package logs

import (
	"bytes"
	"time"
)

// entry is one line of a CRI log.
type entry struct {
	time   time.Time
	stream string // stdout or stderr
	// text includes the newline, unless the piece is partial.
	text []byte
}

// parse parses "<RFC3339Nano> <stream> <tags> <text>\n". The tag F ends a line, P means that it
// continues in the next entry. It returns false if the line has another form.
func parse(line []byte) (entry, bool) {
	stamp, rest, ok := bytes.Cut(line, []byte(" "))
	if !ok {
		return entry{}, false
	}
	t, err := time.Parse(time.RFC3339Nano, string(stamp))
	if err != nil {
		return entry{}, false
	}
	stream, rest, ok := bytes.Cut(rest, []byte(" "))
	if !ok || string(stream) != "stdout" && string(stream) != "stderr" {
		return entry{}, false
	}
	tags, text, ok := bytes.Cut(rest, []byte(" "))
	if !ok {
		return entry{}, false
	}
	tag, _, _ := bytes.Cut(tags, []byte(":"))
	if string(tag) == "P" {
		text = bytes.TrimSuffix(text, []byte("\n"))
	}
	return entry{time: t, stream: string(stream), text: text}, true
}
