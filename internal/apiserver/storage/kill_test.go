package storage

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"wherry.dev/test/panics"
)

// childDir, when set, makes this program a writer to that folder until it is killed.
const childDir = "WHERRY_TEST_STORAGE_DIR"

// childMany, when set too, makes it many writers, which go on when they are refused.
const childMany = "WHERRY_TEST_STORAGE_MANY"

// wasRefused is the exit code of a writer for which there was no room.
const wasRefused = 3

func TestMain(m *testing.M) {
	if dir := os.Getenv(childDir); dir != "" {
		write := writeForEver
		if os.Getenv(childMany) != "" {
			write = writeSideBySide
		}
		err := write(dir)
		fmt.Fprintln(os.Stderr, err)
		if errors.Is(err, ErrNoRoom) || apierrors.ReasonForError(err) == ReasonInsufficientStorage {
			os.Exit(wasRefused)
		}
		os.Exit(1)
	}
	os.Exit(panics.Watch(m).Run())
}

// writeForEver writes numbers with some payload, and names each one once it is acknowledged.
func writeForEver(dir string) error {
	ctx := context.Background()
	b, err := Open(ctx, Config{Dir: dir})
	if err != nil {
		return err
	}
	last, err := lastNumber(ctx, b)
	if err != nil {
		return err
	}
	for n := last + 1; ; n++ {
		size := 1 << (10 + n%11) // up to 1 MiB
		if _, err := b.client.Put(ctx, numberKey, fmt.Sprintf("%d %s", n, strings.Repeat("x", size))); err != nil {
			return err
		}
		fmt.Println(n)
	}
}

const numberKey = prefix + "/number"

func lastNumber(ctx context.Context, b *Backend) (int, error) {
	answer, err := b.client.KV.Get(ctx, numberKey)
	if err != nil || len(answer.Kvs) == 0 {
		return 0, err
	}
	text, _, _ := strings.Cut(string(answer.Kvs[0].Value), " ")
	return strconv.Atoi(text)
}

// On a full disk, files of the log are overwritten and moved while others are written to. A kill
// between any two of these steps loses nothing that was acknowledged. Each start takes room of its
// own, so in the end there may be too little for a write: then the write is refused, etcd does not
// fail because of it, and everything goes on once there is room.
func TestKillOnAFullDiskLosesNothing(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0)) //nolint:gosec // no secret
	disk := smallDisk(t, "tmpfs", 400<<20)
	dir, hog := filepath.Join(disk, "etcd"), filepath.Join(disk, "hog")
	if _, refused := written(t, dir, 20); refused {
		t.Fatal("refused on an empty disk")
	}
	fillUp(t, hog)
	fillUp(t, hog)
	for round := range 12 {
		acknowledged, refused := written(t, dir, 1+random.IntN(250))
		if refused {
			t.Logf("refused in round %d", round)
			break
		}
		holds(t, dir, acknowledged)
	}
	if err := os.Remove(hog); err != nil {
		t.Fatal(err)
	}
	acknowledged, refused := written(t, dir, 20)
	if refused {
		t.Error("refused when there is room again")
	}
	holds(t, dir, acknowledged)
}

// holds checks that everything acknowledged is there.
func holds(t *testing.T, dir string, acknowledged int) {
	t.Helper()
	b, err := Open(t.Context(), Config{Dir: dir})
	if errors.Is(err, ErrNoRoom) {
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	got, err := lastNumber(t.Context(), b)
	if err != nil || got < acknowledged {
		t.Errorf("%d was acknowledged, %d is there, %v", acknowledged, got, err)
	}
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
}

// written has a child write, and kills it when it has named n numbers. It returns the last of them,
// and whether a write was refused before that for lack of room.
func written(t *testing.T, dir string, n int) (last int, refused bool) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), childDir+"="+dir)
	var log strings.Builder
	cmd.Stderr = &log
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines, named := bufio.NewScanner(out), 0
	for ; lines.Scan(); named++ {
		if last, err = strconv.Atoi(lines.Text()); err != nil {
			t.Fatal(err)
		}
		if named == n-1 {
			if err := cmd.Process.Kill(); err != nil {
				t.Error(err)
			}
		}
	}
	err = cmd.Wait()
	if refused = cmd.ProcessState.ExitCode() == wasRefused; !refused && named < n {
		t.Fatalf("the writer ended by itself: %v\n%s", err, log.String())
	}
	return last, refused
}

const writers = 16

func keyOf(writer int) string { return fmt.Sprintf("%s/%d", numberKey, writer) }

// writeSideBySide has every writer write numbers to a key of its own, and names the key and the
// number once that is acknowledged. It ends when etcd fails.
func writeSideBySide(dir string) error {
	ctx := context.Background()
	b, err := Open(ctx, Config{Dir: dir})
	if err != nil {
		return err
	}
	fmt.Println("open")
	for writer := range writers {
		go func() {
			n, err := numberAt(ctx, b, keyOf(writer))
			for err == nil || apierrors.ReasonForError(err) == ReasonInsufficientStorage {
				n++
				size := 1 << (rand.IntN(10) + rand.IntN(11)) //nolint:gosec // no secret
				if _, err = b.client.Put(ctx, keyOf(writer), fmt.Sprintf("%d %s", n, strings.Repeat("x", size))); err == nil {
					fmt.Println(writer, n)
				}
			}
			fmt.Fprintln(os.Stderr, err)
		}()
	}
	<-b.embedded.end.failed()
	return b.RestartReason()
}

// Another process takes all free room on the disk as soon as there is some, so that snapshots are
// missed again and again while many write. A kill at any moment of that loses nothing that was
// acknowledged, and etcd never ends by itself.
func TestKillWhileSnapshotsAreMissedLosesNothing(t *testing.T) {
	for _, kind := range []string{"tmpfs", "ext4"} {
		t.Run(kind, func(t *testing.T) {
			seed := rand.Uint64()
			t.Logf("seed %d", seed)
			random := rand.New(rand.NewPCG(seed, 0)) //nolint:gosec // no secret
			disk := smallDisk(t, kind, 400<<20)
			dir, hog := filepath.Join(disk, "etcd"), filepath.Join(disk, "hog")
			acknowledged := make([]int, writers)
			for round := range rounds() {
				fill := func() (release func()) { return grab(t, hog, random.Int64N(3)<<20) }
				if round > 0 && random.IntN(3) == 0 { // already before the start
					release := fill()
					fill = func() func() { return release }
				}
				writtenSideBySide(t, dir, acknowledged, time.Duration(random.IntN(2000))*time.Millisecond, fill)
				if t.Failed() {
					t.Fatalf("in round %d", round)
				}
				if random.IntN(2) == 0 { // else the next round starts on the full disk, if it can
					if err := os.Remove(hog); err != nil {
						t.Fatal(err)
					}
					holdsAll(t, dir, acknowledged)
				}
			}
			if err := os.RemoveAll(hog); err != nil {
				t.Fatal(err)
			}
			holdsAll(t, dir, acknowledged)
		})
	}
}

func rounds() int {
	if n, err := strconv.Atoi(os.Getenv("WHERRY_TEST_ROUNDS")); err == nil {
		return n
	}
	return 4
}

func numberAt(ctx context.Context, b *Backend, key string) (int, error) {
	answer, err := b.client.KV.Get(ctx, key)
	if err != nil || len(answer.Kvs) == 0 {
		return 0, err
	}
	text, _, _ := strings.Cut(string(answer.Kvs[0].Value), " ")
	return strconv.Atoi(text)
}

// holdsAll checks that everything acknowledged to each writer is there.
func holdsAll(t *testing.T, dir string, acknowledged []int) {
	t.Helper()
	b := open(t, dir)
	for writer, want := range acknowledged {
		if got, err := numberAt(t.Context(), b, keyOf(writer)); err != nil || got < want {
			t.Errorf("of writer %d %d was acknowledged, %d is there, %v", writer, want, got, err)
		}
	}
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
}

// writtenSideBySide has a child write, and kills it some time after the disk has been filled. It
// records what was acknowledged. A child may also fail to open its data because there is no room. One
// that starts on a full disk, on which it cannot even reserve space, may end for want of it: a kill can
// come when a part of the former reserve has just been used.
func writtenSideBySide(t *testing.T, dir string, acknowledged []int, after time.Duration, fill func() (release func())) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	cmd := exec.CommandContext(ctx, os.Args[0])
	cmd.Env = append(os.Environ(), childDir+"="+dir, childMany+"=1")
	var log strings.Builder
	cmd.Stderr = &log
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	release := func() {}
	for lines := bufio.NewScanner(out); lines.Scan(); {
		if lines.Text() == "open" {
			release = fill()
			time.AfterFunc(after, cancel)
			continue
		}
		var writer, n int
		if _, err := fmt.Sscan(lines.Text(), &writer, &n); err != nil {
			t.Fatal(err)
		}
		acknowledged[writer] = n
	}
	err = cmd.Wait()
	release()
	t.Logf("after %v: %v, %d snapshots were missed, %v are acknowledged", after, err, strings.Count(log.String(), "every write tries again"), acknowledged)
	// What the child saw counts: who takes the room may still have been at it when the child was started.
	unreserved := strings.Contains(log.String(), "Cannot reserve disk space") &&
		strings.Contains(log.String(), "The cluster's data is short of space") && strings.Contains(log.String(), syscall.ENOSPC.Error())
	if code := cmd.ProcessState.ExitCode(); code >= 0 && code != wasRefused && !unreserved {
		t.Errorf("the writer ended by itself: %v\n%s", err, log.String())
	}
}
