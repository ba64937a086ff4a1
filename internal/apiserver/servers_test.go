package apiserver

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"wherry.dev/internal/apiserver/storage"
)

// welcomed returns what a server gets that joins others.
func welcomed() Welcome {
	return Welcome{Files: map[string][]byte{"ca.crt": []byte("cert"), "ca.key": []byte("key")}, Members: "a=https://192.0.2.1:2380,b=https://192.0.2.2:2380"}
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestAServerTakesTheKeysOfOthers(t *testing.T) {
	dir := t.TempDir()
	w := welcomed()
	if err := w.Check(dir, ""); err != nil {
		t.Fatal(err)
	}
	made, err := w.Accept(dir)
	if err != nil || len(made) != 3 {
		t.Fatal(made, err)
	}
	for name, want := range w.Files {
		path := filepath.Join(dir, "pki", name)
		info, err := os.Stat(path)
		if err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v, %v", name, info, err)
		}
		if got, err := os.ReadFile(path); err != nil || string(got) != string(want) {
			t.Errorf("%s: %q, %v", name, got, err)
		}
	}
	if !HasServers(dir) || HasData(dir) {
		t.Error("its etcd does not begin as a member of others")
	}
	// Asked again, after a kill: nothing is new.
	if err := w.Check(dir, ""); err != nil {
		t.Error(err)
	}
	if made, err := w.Accept(dir); err != nil || len(made) != 0 {
		t.Error(made, err)
	}
}

func TestAServerWithOtherKeysIsLeftAlone(t *testing.T) {
	encrypted, other := filepath.Join(t.TempDir(), "a.yaml"), filepath.Join(t.TempDir(), "b.yaml")
	write(t, encrypted, "a")
	write(t, other, "b")
	digest, err := encryptionDigest(encrypted)
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		change func(*Welcome)
		file   string
		want   string
	}{
		"keys of another cluster": {func(w *Welcome) { w.Files["sa.key"] = []byte("theirs") }, "", "is of another cluster"},
		"a path":                  {func(w *Welcome) { w.Files["../kubeconfig"] = nil }, "", "which servers do not share"},
		"encryption there only":   {func(w *Welcome) { w.Encryption = digest }, "", "copy the file"},
		"encryption here only":    {func(*Welcome) {}, encrypted, "leave out --encryption-provider-config"},
		"another encryption":      {func(w *Welcome) { w.Encryption = digest }, other, "copy the file"},
		"the same encryption":     {func(w *Welcome) { w.Encryption = digest }, encrypted, ""},
	} {
		dir := t.TempDir()
		write(t, filepath.Join(dir, "pki", "sa.key"), "ours")
		w := welcomed()
		c.change(&w)
		err := w.Check(dir, c.file)
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
}

func TestTokensOfServersAreProvenByTheirKeys(t *testing.T) {
	ours, theirs := t.TempDir(), t.TempDir()
	write(t, filepath.Join(ours, "ca.key"), "ours")
	write(t, filepath.Join(theirs, "ca.key"), "theirs")
	const token = "abcdef.0123456789abcdef"
	proof, err := ServerProof(ours, token)
	if err != nil || len(proof) != 64 {
		t.Fatal(proof, err)
	}
	s := &Server{cfg: Config{CertDir: ours}}
	for name, c := range map[string]struct {
		token, proof string
		want         bool
	}{
		"the proof":                {token, proof, true},
		"none":                     {token, "", false},
		"that of another token":    {"bbcdef.0123456789abcdef", proof, false},
		"that of other keys":       {token, func() string { p, _ := ServerProof(theirs, token); return p }(), false},
		"one that begins the same": {token, proof[:63], false},
	} {
		if got, err := s.ProvesServer(c.token, c.proof); err != nil || got != c.want {
			t.Errorf("%s: %v, %v", name, got, err)
		}
	}
	if _, err := ServerProof(t.TempDir(), token); !os.IsNotExist(err) {
		t.Errorf("without keys: %v", err)
	}
}

// A server that was one of several, and has lost its data with all that says so, but for its keys.
func TestAServerThatWasOneOfSeveralDoesNotBeginAnew(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "pki", peerName+".crt"), "")
	c := &credentials{}
	cfg := &Config{DataDir: dir, CertDir: filepath.Join(dir, "pki")}
	if err := c.loadPeer(cfg, time.Now()); err == nil || !strings.Contains(err.Error(), storage.ErrLost.Error()) {
		t.Error(err)
	}
}
