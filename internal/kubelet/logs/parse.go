// Package logs reads and rotates the logs of containers in the CRI format: a line for each piece of
// output, with its time, its stream and whether it ends a line. Docker's, which are JSON, it only
// reads: Docker rotates them as its own configuration says.
package logs

import (
	"bytes"
	"encoding/json"
	"time"
)

// entry is one line of a log.
type entry struct {
	time   time.Time
	stream string // stdout or stderr
	// text includes the newline, unless the piece is partial.
	text []byte
}

// parse parses "<RFC3339Nano> <stream> <tags> <text>\n". The tag F ends a line, P means that it
// continues in the next entry. It returns false if the line has another form.
func parse(line []byte) (entry, bool) {
	if len(line) > 0 && line[0] == '{' {
		return parseDocker(line)
	}
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

// parseDocker parses a line of Docker's driver json-file. A piece that does not end a line has no
// newline in it.
func parseDocker(line []byte) (entry, bool) {
	var l struct {
		Log    string    `json:"log"`
		Stream string    `json:"stream"`
		Time   time.Time `json:"time"`
	}
	if json.Unmarshal(line, &l) != nil || l.Stream != "stdout" && l.Stream != "stderr" || l.Time.IsZero() {
		return entry{}, false
	}
	return entry{time: l.Time, stream: l.Stream, text: []byte(l.Log)}, true
}
