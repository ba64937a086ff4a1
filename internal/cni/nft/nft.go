// Package nft passes transactions to the kernel through nft(8), and reads back which elements of
// sets and maps carry which comment. This is how one attachment's elements are found among all
// others.
package nft

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os/exec"
	"strings"
)

// ErrExists means that a transaction tried to create an element that already exists.
var ErrExists = errors.New("element exists")

// ErrNotFound means that a table, set or element does not exist.
var ErrNotFound = errors.New("no such table, set or element")

// Run executes a script, completely or not at all.
func Run(ctx context.Context, script string) error {
	_, err := run(ctx, script, "-f", "-")
	return err
}

// DeleteTable removes a table. It is not an error if there is none.
func DeleteTable(ctx context.Context, family, name string) error {
	return Run(ctx, fmt.Sprintf("table %s %s {}\ndelete table %s %s\n", family, name, family, name))
}

func run(ctx context.Context, stdin string, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, "nft", args...)
	cmd.Stdin = strings.NewReader(stdin)
	var out, diag bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &diag
	err := cmd.Run()
	if errors.Is(err, exec.ErrNotFound) {
		return nil, errors.New("nft was not found in PATH; install the package nftables")
	}
	if err != nil {
		line, _, _ := strings.Cut(strings.TrimSpace(diag.String()), "\n")
		switch {
		case strings.HasSuffix(line, "File exists"): // nft has no other way to say so
			return nil, fmt.Errorf("nft: %w: %s", ErrExists, line)
		case strings.Contains(line, "No such file or directory"): // possibly followed by a suggestion of what was meant
			return nil, fmt.Errorf("nft: %w: %s", ErrNotFound, line)
		}
		return nil, fmt.Errorf("nft: %w: %s", err, line)
	}
	return out.Bytes(), nil
}

// Element is an element of a set or map that carries a comment.
type Element struct {
	Set     string // name of the set or map
	Key     string // in nft's language
	Comment string
}

// Elements lists the elements of a table that carry a comment; a missing table has none.
func Elements(ctx context.Context, family, table string) ([]Element, error) {
	out, err := run(ctx, "", "-j", "list", "table", family, table)
	if errors.Is(err, ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return parseElements(out)
}

type listing struct {
	Nftables []struct{ Set, Map *listedSet }
}

type listedSet struct {
	Name string
	Elem []json.RawMessage
}

// parseElements parses nft's JSON. Elements of maps are pairs of key and value.
func parseElements(doc []byte) ([]Element, error) {
	if len(bytes.TrimSpace(doc)) == 0 {
		return nil, nil
	}
	var l listing
	if err := json.Unmarshal(doc, &l); err != nil {
		return nil, fmt.Errorf("read nft's answer: %w", err)
	}
	var es []Element
	for _, x := range l.Nftables {
		set := x.Set
		if set == nil {
			set = x.Map
		}
		if set == nil {
			continue
		}
		for _, raw := range set.Elem {
			if x.Map != nil {
				var pair []json.RawMessage
				if err := json.Unmarshal(raw, &pair); err != nil || len(pair) != 2 {
					return nil, fmt.Errorf("read nft's answer: %s is not an element of map %s", raw, set.Name)
				}
				raw = pair[0]
			}
			e, ok, err := parseElement(raw)
			if err != nil {
				return nil, fmt.Errorf("read nft's answer: set %s: %w", set.Name, err)
			}
			if ok {
				e.Set = set.Name
				es = append(es, e)
			}
		}
	}
	return es, nil
}

// parseElement parses {"elem": {"val": KEY, "comment": …}}; any other form has no comment.
func parseElement(raw json.RawMessage) (Element, bool, error) {
	var x struct {
		Elem *struct {
			Val     json.RawMessage
			Comment string
		}
	}
	if raw[0] != '{' {
		return Element{}, false, nil
	}
	if err := json.Unmarshal(raw, &x); err != nil {
		return Element{}, false, err
	}
	if x.Elem == nil || x.Elem.Comment == "" {
		return Element{}, false, nil
	}
	key, err := parseKey(x.Elem.Val)
	return Element{Key: key, Comment: x.Elem.Comment}, err == nil, err
}

// parseKey translates a value back to nft's language.
func parseKey(raw json.RawMessage) (string, error) {
	if len(raw) == 0 {
		return "", errors.New("an element has no value")
	}
	switch raw[0] {
	case '"':
		var s string
		err := json.Unmarshal(raw, &s)
		return s, err
	case '{':
		var v struct {
			Concat []json.RawMessage
			Prefix *struct {
				Addr netip.Addr
				Len  int
			}
		}
		if err := json.Unmarshal(raw, &v); err != nil {
			return "", err
		}
		if v.Prefix != nil {
			return fmt.Sprintf("%s/%d", v.Prefix.Addr, v.Prefix.Len), nil
		}
		if len(v.Concat) == 0 {
			return "", fmt.Errorf("value %s is of an unknown kind", raw)
		}
		parts := make([]string, len(v.Concat))
		for i, c := range v.Concat {
			var err error
			if parts[i], err = parseKey(c); err != nil {
				return "", err
			}
		}
		return strings.Join(parts, " . "), nil
	}
	return string(raw), nil // a number
}
