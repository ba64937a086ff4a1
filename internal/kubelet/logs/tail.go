package logs

import (
	"bytes"
	"io"
)

// Tail returns the end of a container's log as plain text, limited in lines and bytes. A log that
// cannot be read counts as empty.
func Tail(path, id string, lines int, most int64) string {
	f, err := openOf(path, id)
	if err != nil {
		return ""
	}
	defer func() { _ = f.Close() }()
	// Besides its text, every line has a time and tags of less than 64 bytes.
	chunk := most + int64(lines)*64
	if info, err := f.Stat(); err == nil && info.Size() > chunk {
		if _, err := f.Seek(-chunk, io.SeekEnd); err != nil {
			return ""
		}
	}
	data, err := io.ReadAll(io.LimitReader(f, chunk))
	if err != nil {
		return ""
	}
	all := bytes.SplitAfter(data, []byte("\n"))
	if len(all) > lines+1 {
		all = all[len(all)-lines-1:]
	}
	var out []byte
	for _, raw := range all {
		if e, ok := parse(raw); ok {
			out = append(out, e.text...)
		}
	}
	if over := int64(len(out)) - most; over > 0 {
		out = out[over:]
	}
	return string(out)
}
