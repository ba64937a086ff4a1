package oci

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"strconv"
	"strings"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"wherry.dev/internal/safepath"
)

// ResolveUser determines the user that the container runs as: the pod's security context, else
// the image's USER, else root. It looks names up in the image's own files.
func ResolveUser(sec *runtimeapi.LinuxContainerSecurityContext, imageUser, rootfs string) (specs.User, error) {
	db, err := readUserDB(rootfs)
	if err != nil {
		return specs.User{}, err
	}
	return resolveUser(sec, imageUser, db)
}

// userDB is the content of the image's /etc/passwd and /etc/group.
type userDB struct {
	passwd []passwdEntry
	group  []groupEntry
}

type passwdEntry struct {
	name     string
	uid, gid uint32
}

type groupEntry struct {
	name    string
	gid     uint32
	members []string
}

func resolveUser(sec *runtimeapi.LinuxContainerSecurityContext, imageUser string, db userDB) (specs.User, error) {
	if sec.GetRunAsGroup() != nil && sec.GetRunAsUser() == nil && sec.GetRunAsUsername() == "" {
		return specs.User{}, errors.New("runAsGroup is set without runAsUser; set both")
	}
	user, group := imageUser, ""
	switch {
	case sec.GetRunAsUser() != nil:
		user = strconv.FormatInt(sec.GetRunAsUser().GetValue(), 10)
	case sec.GetRunAsUsername() != "":
		user = sec.GetRunAsUsername()
	default:
		user, group, _ = strings.Cut(imageUser, ":")
	}
	if g := sec.GetRunAsGroup(); g != nil {
		group = strconv.FormatInt(g.GetValue(), 10)
	}
	u, name, err := db.user(user)
	if err != nil {
		return u, err
	}
	if group != "" {
		if u.GID, err = db.groupID(group); err != nil {
			return u, err
		}
	}
	if sec.GetSupplementalGroupsPolicy() == runtimeapi.SupplementalGroupsPolicy_Merge {
		u.AdditionalGids = db.memberships(name)
	}
	for _, g := range sec.GetSupplementalGroups() {
		if g < 0 || g > 1<<32-2 {
			return u, fmt.Errorf("supplemental group %d is out of range", g)
		}
		u.AdditionalGids = append(u.AdditionalGids, uint32(g))
	}
	u.AdditionalGids = append(u.AdditionalGids, u.GID)
	slices.Sort(u.AdditionalGids)
	u.AdditionalGids = slices.Compact(u.AdditionalGids)
	return u, nil
}

// user finds a user by name or number. A number need not be in the file.
func (db userDB) user(s string) (u specs.User, name string, err error) {
	if s == "" {
		s = "0"
	}
	id, nerr := parseID(s)
	for _, p := range db.passwd {
		if p.name == s || (nerr == nil && p.uid == id) {
			return specs.User{UID: p.uid, GID: p.gid}, p.name, nil
		}
	}
	if nerr != nil {
		return u, "", fmt.Errorf("unable to find user %s: no matching entries in the image's /etc/passwd", s)
	}
	return specs.User{UID: id}, "", nil
}

func (db userDB) groupID(s string) (uint32, error) {
	for _, g := range db.group {
		if g.name == s {
			return g.gid, nil
		}
	}
	id, err := parseID(s)
	if err != nil {
		return 0, fmt.Errorf("unable to find group %s: no matching entries in the image's /etc/group", s)
	}
	return id, nil
}

// memberships returns the groups whose member list names the user.
func (db userDB) memberships(name string) []uint32 {
	var ids []uint32
	for _, g := range db.group {
		if name != "" && slices.Contains(g.members, name) {
			ids = append(ids, g.gid)
		}
	}
	return ids
}

// parseID parses a user or group number; the largest value is the kernel's "none".
func parseID(s string) (uint32, error) {
	n, err := strconv.ParseUint(s, 10, 32)
	if err == nil && n == 1<<32-1 {
		err = fmt.Errorf("ID %s is out of range", s)
	}
	return uint32(n), err
}

func readUserDB(rootfs string) (userDB, error) {
	var db userDB
	err := scanInRoot(rootfs, "/etc/passwd", func(f []string) {
		if len(f) < 4 {
			return
		}
		uid, uerr := parseID(f[2])
		gid, gerr := parseID(f[3])
		if uerr == nil && gerr == nil {
			db.passwd = append(db.passwd, passwdEntry{f[0], uid, gid})
		}
	})
	if err != nil {
		return db, err
	}
	err = scanInRoot(rootfs, "/etc/group", func(f []string) {
		if len(f) < 4 {
			return
		}
		if gid, err := parseID(f[2]); err == nil {
			db.group = append(db.group, groupEntry{f[0], gid, strings.FieldsFunc(f[3], func(r rune) bool { return r == ',' || r == ' ' })})
		}
	})
	return db, err
}

// maxUserDB bounds how much is read of an untrusted file.
const maxUserDB = 16 << 20

// scanInRoot reads the colon-separated lines of a file of the image; a missing file has none. It
// follows symbolic links only within the image.
func scanInRoot(rootfs, path string, line func(fields []string)) error {
	root, err := safepath.Open(rootfs)
	if err != nil {
		return err
	}
	defer func() { _ = root.Close() }()
	f, err := root.Regular(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read %s of the image: %w", path, err)
	}
	defer func() { _ = f.Close() }()
	s := bufio.NewScanner(io.LimitReader(f, maxUserDB))
	s.Buffer(nil, 1<<20)
	for s.Scan() {
		if text := strings.TrimSpace(s.Text()); text != "" && text[0] != '#' {
			line(strings.Split(text, ":"))
		}
	}
	if err := s.Err(); err != nil {
		return fmt.Errorf("read %s of the image: %w", path, err)
	}
	return nil
}
