package apiserver

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.etcd.io/bbolt"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// overwrite writes data into a file n times, every 4 KiB from at on.
func overwrite(path string, at int64, data []byte, n int) error {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	for i := range n {
		if _, err := f.WriteAt(data, at+int64(i)*4096); err != nil {
			return err
		}
	}
	return nil
}

// On such damage etcd itself reacts with a nil dereference, a panic that nobody can recover from, a
// minute of silence, or an empty cluster.
func TestDamagedDataNamesTheFile(t *testing.T) {
	master := t.TempDir()
	s, stop := run(t, master)
	c := admin(t, s)
	for i := range 26 {
		if err := makeMap(t, c, "m-"+string(rune('a'+i)), 30<<10); err != nil {
			t.Fatal(err)
		}
	}
	stop()
	garbage, zeros := []byte(strings.Repeat("garbage ", 8)), make([]byte, 4096)
	const member = "etcd/member-data/member"
	type damage struct {
		file  string // relative to the member's folder
		spoil func(path string) error
		want  string
	}
	cut := func(size int64) func(string) error {
		return func(path string) error { return os.Truncate(path, size) }
	}
	over := func(at int64, data []byte, n int) func(string) error {
		return func(path string) error { return overwrite(path, at, data, n) }
	}
	for name, d := range map[string]damage{
		"log emptied":                 {"wal/*.wal", cut(0), "member/wal: "},
		"log cut":                     {"wal/*.wal", cut(100 << 10), "the log is damaged or truncated"},
		"log with zeros":              {"wal/*.wal", over(200<<10, zeros, 2), "the log is damaged or truncated"},
		"log with garbage":            {"wal/*.wal", over(200<<10, garbage, 1), "crc mismatch"},
		"log that begins in garbage":  {"wal/*.wal", over(0, garbage, 1), "member/wal: "},
		"no folder of logs":           {"wal", os.RemoveAll, "has no write-ahead log"},
		"no database":                 {"snap/db", os.Remove, "but the database"},
		"no folder of the database":   {"snap", os.RemoveAll, "but the database"},
		"database emptied":            {"snap/db", cut(0), "snap/db: the file is empty"},
		"database cut":                {"snap/db", cut(64 << 10), "snap/db: the file is truncated: it has 65536 of"},
		"database without a head":     {"snap/db", over(0, zeros, 2), "snap/db: invalid database"},
		"database with zeros":         {"snap/db", over(8192, zeros, 16), "snap/db: the file is damaged: "},
		"database with garbage":       {"snap/db", over(8192, garbage, 20), "snap/db: the file is damaged: "},
		"database with garbage later": {"snap/db", over(200<<10, garbage, 100), "snap/db: the file is damaged: "},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			if err := os.CopyFS(dir, os.DirFS(master)); err != nil {
				t.Fatal(err)
			}
			files, err := filepath.Glob(filepath.Join(dir, member, d.file))
			if err != nil || len(files) != 1 {
				t.Fatalf("%v, %v", files, err)
			}
			if err := d.spoil(files[0]); err != nil {
				t.Fatal(err)
			}
			err = newFails(t, func(c *Config) { c.DataDir = dir })
			if !strings.Contains(err.Error(), d.want) || !strings.Contains(err.Error(), "restore the folder from a backup") || strings.Contains(err.Error(), "\n") {
				t.Errorf("error: %v", err)
			}
		})
	}
}

// A kill in the first moments of a first start leaves a database without a log.
func TestHalfAFirstStartIsNoDamage(t *testing.T) {
	dir := t.TempDir()
	_, stop := run(t, dir)
	stop()
	member := filepath.Join(DataIn(dir), "member")
	empty := filepath.Join(t.TempDir(), "db")
	db, err := bbolt.Open(empty, 0o600, nil)
	if err == nil {
		err = db.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(filepath.Join(member, "wal")); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(empty, filepath.Join(member, "snap", "db")); err != nil {
		t.Fatal(err)
	}
	s := startIn(t, dir)
	if _, err := admin(t, s).CoreV1().Namespaces().Get(t.Context(), "default", metav1.GetOptions{}); err != nil {
		t.Error(err)
	}
}

func TestDataThatAreGoneAreTold(t *testing.T) {
	dir := t.TempDir()
	cfg := Config{DataDir: dir}
	if got := cfg.LostData(); got != "" {
		t.Errorf("before the first start: %q", got)
	}
	_, stop := run(t, dir)
	stop()
	if got := cfg.LostData(); got != "" {
		t.Errorf("with its data: %q", got)
	}
	if err := os.RemoveAll(DataIn(dir)); err != nil {
		t.Fatal(err)
	}
	if got := cfg.LostData(); !strings.Contains(got, DataIn(dir)) || !strings.Contains(got, "backup") {
		t.Errorf("without its data: %q", got)
	}
}
