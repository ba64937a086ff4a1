package userns

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"os/user"
	"strconv"
	"strings"
)

// account owns the subordinate IDs that are for pods, if it exists.
const account = "kubelet"

// HostRange returns the IDs that the host sets aside for pods: those of the account "kubelet"
// according to getsubids or, if that tool is not installed, /etc/subuid and /etc/subgid. The zero
// value means that the host sets none aside.
func HostRange(ctx context.Context) (Range, error) {
	var unknown user.UnknownUserError
	if _, err := user.Lookup(account); errors.As(err, &unknown) {
		return Range{}, nil
	} else if err != nil {
		return Range{}, fmt.Errorf("user namespaces: %w", err)
	}
	tool, err := exec.LookPath("getsubids")
	if errors.Is(err, exec.ErrNotFound) {
		return same(fromFile("/etc/subuid"))(fromFile("/etc/subgid"))
	}
	if err != nil {
		return Range{}, fmt.Errorf("user namespaces: %w", err)
	}
	ask := func(args ...string) (Range, error) {
		out, err := exec.CommandContext(ctx, tool, args...).Output()
		if err != nil {
			return Range{}, fmt.Errorf("user namespaces: subordinate IDs of user %q: %w", account, err)
		}
		return parseSubIDs(string(out))
	}
	return same(ask(account))(ask("-g", account))
}

// same requires that users and groups have the same range.
func same(users Range, err error) func(Range, error) (Range, error) {
	return func(groups Range, err2 error) (Range, error) {
		if err := errors.Join(err, err2); err != nil {
			return Range{}, err
		}
		if users != groups {
			return Range{}, fmt.Errorf("user namespaces: the subordinate user and group IDs of user %q differ", account)
		}
		return users, nil
	}
}

// parseSubIDs parses the one line "0: kubelet 65536 7208960".
func parseSubIDs(out string) (Range, error) {
	fields := strings.Fields(out)
	if strings.Count(strings.TrimSpace(out), "\n") > 0 || len(fields) != 4 {
		return Range{}, fmt.Errorf("user namespaces: want one range of subordinate IDs, got %q", out)
	}
	return parseRange(fields[2], fields[3])
}

func parseRange(first, length string) (Range, error) {
	f, err := strconv.ParseUint(first, 10, 32)
	if err != nil {
		return Range{}, fmt.Errorf("user namespaces: subordinate IDs: %w", err)
	}
	n, err := strconv.ParseUint(length, 10, 32)
	if err != nil {
		return Range{}, fmt.Errorf("user namespaces: subordinate IDs: %w", err)
	}
	return Range{First: uint32(f), Length: uint32(n)}, nil
}

// fromFile reads the account's line of a file such as /etc/subuid.
func fromFile(path string) (Range, error) {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return Range{}, nil
	}
	if err != nil {
		return Range{}, fmt.Errorf("user namespaces: %w", err)
	}
	defer func() { _ = f.Close() }()
	found := Range{}
	sc := bufio.NewScanner(f)
	for sc.Scan() {
		parts := strings.Split(strings.TrimSpace(sc.Text()), ":")
		if len(parts) != 3 || parts[0] != account {
			continue
		}
		if found != (Range{}) {
			return Range{}, fmt.Errorf("user namespaces: %s has more than one range for user %q", path, account)
		}
		if found, err = parseRange(parts[1], parts[2]); err != nil {
			return Range{}, err
		}
	}
	return found, sc.Err()
}
