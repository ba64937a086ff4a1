package sim

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
)

var (
	lives = flag.Uint64("lives", fromEnv("LIVES", 1000), "how many lives to play")
	most  = flag.Uint64("most", 1, "after how many failures to stop")
	seed  = flag.Uint64("seed", fromEnv("SEED", 1), "seed of the first life; the next have the next numbers")
)

// fromEnv lets make set what go test cannot pass to several packages at once.
func fromEnv(name string, otherwise uint64) uint64 {
	if n, err := strconv.ParseUint(os.Getenv(name), 10, 64); err == nil {
		return n
	}
	return otherwise
}

// workspace is a folder in memory where there is one: a life writes many small files.
func workspace(t testing.TB) string {
	if info, err := os.Stat("/dev/shm"); err == nil && info.IsDir() {
		dir, err := os.MkdirTemp("/dev/shm", "wherry-sim-") //nolint:usetesting // TempDir is on a disk
		if err == nil {
			t.Cleanup(func() {
				if err := os.RemoveAll(dir); err != nil {
					t.Error(err)
				}
			})
			return dir
		}
	}
	return t.TempDir()
}

// TestMain trades memory for speed: lives are short, and what they leave is garbage.
func TestMain(m *testing.M) {
	debug.SetGCPercent(1000)
	goleak.VerifyTestMain(m)
}

// TestLives plays lives until one goes wrong. A single life is printed. After a panic
// the folders that are left in /dev/shm/wherry-sim-* have the seeds that were played.
func TestLives(t *testing.T) {
	root := workspace(t)
	began := time.Now()
	var played, failed atomic.Uint64
	t.Run("all", func(t *testing.T) {
		shards := uint64(runtime.GOMAXPROCS(0))
		for shard := range shards {
			t.Run(fmt.Sprint(shard), func(t *testing.T) {
				t.Parallel()
				told := time.Now()
				for s := *seed + shard; s < *seed+*lives && failed.Load() < *most; s += shards {
					out := Play(t, s, filepath.Join(root, fmt.Sprint(s)))
					if n := played.Add(1); shard == 0 && time.Since(told) > 5*time.Second {
						told = time.Now()
						fmt.Printf("%d of %d lives, %.1f ms each\n", n, *lives, float64(time.Since(began).Milliseconds())/float64(n))
					}
					if out.Err != nil {
						failed.Add(1)
						t.Error(report(out))
					} else if *lives == 1 {
						t.Log("\n" + strings.Join(out.History, "\n"))
					}
				}
			})
		}
	})
	t.Logf("%d lives in %v", played.Load(), time.Since(began).Round(time.Millisecond))
}

func FuzzLives(f *testing.F) {
	root := workspace(f)
	f.Add(uint64(1))
	f.Fuzz(func(t *testing.T, s uint64) {
		if out := Play(t, s, filepath.Join(root, fmt.Sprintf("%d-%d", os.Getpid(), s))); out.Err != nil {
			t.Fatal(report(out))
		}
	})
}

func report(out Outcome) string {
	text := out.History
	if *lives != 1 && len(text) > 40 {
		text = append(slices.Clone(text[:1]), append([]string{"…"}, text[len(text)-40:]...)...)
	}
	return fmt.Sprintf("seed %d: %v\n%s\nplay it again, and see all of it: make sim SEED=%d LIVES=1", out.Seed, out.Err, strings.Join(text, "\n"), out.Seed)
}

// A failure is worth nothing if it does not come back.
func TestASeedPlaysTheSameLifeAgain(t *testing.T) {
	root := workspace(t)
	for s := range uint64(20) {
		first := Play(t, 1000+s, filepath.Join(root, "a"))
		again := Play(t, 1000+s, filepath.Join(root, "b"))
		if diff := cmp.Diff(first.History, again.History); diff != "" {
			t.Fatalf("seed %d:\n%s", 1000+s, diff)
		}
	}
}
