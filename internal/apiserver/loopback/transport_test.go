package loopback

import (
	"bytes"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"testing"
)

// TestPipeBringsWhatWasWritten writes pieces of random sizes while another goroutine reads pieces of
// random sizes, so that the reader is ahead, behind, and in the middle of a buffer.
func TestPipeBringsWhatWasWritten(t *testing.T) {
	for seed := range uint64(12) {
		rnd := rand.New(rand.NewPCG(seed, 0))
		want := make([]byte, 2*pipeHighWater)
		for i := range want {
			want[i] = byte(rnd.Uint32())
		}
		most := []int{16, pipeKeep, pipeHighWater}[seed%3]
		if most == 16 {
			want = want[:64<<10]
		}
		pieces := cut(rnd, want, most)
		w := newPipeWriter(func() {})
		go w.serve(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			for _, p := range pieces {
				if n, err := w.Write(p); n != len(p) || err != nil {
					t.Errorf("seed %d: wrote %d of %d bytes: %v", seed, n, len(p), err)
				}
			}
		}), httptest.NewRequest(http.MethodGet, "/", http.NoBody))
		got, err := io.ReadAll(&inPieces{w, rnd, most})
		if err != nil || !bytes.Equal(got, want) {
			t.Fatalf("seed %d: %v, %d bytes instead of the %d that were written, or others", seed, err, len(got), len(want))
		}
		if len(w.buf) > 0 || cap(w.buf) > pipeKeep {
			t.Errorf("seed %d: %d of %d bytes are kept after the last was read", seed, len(w.buf), cap(w.buf))
		}
	}
}

func cut(rnd *rand.Rand, b []byte, most int) (out [][]byte) {
	for len(b) > 0 {
		n := min(1+rnd.IntN(most), len(b))
		out, b = append(out, b[:n]), b[n:]
	}
	return out
}

// inPieces reads at most so much at once.
type inPieces struct {
	io.Reader
	rnd  *rand.Rand
	most int
}

func (r *inPieces) Read(p []byte) (int, error) {
	return r.Reader.Read(p[:min(len(p), 1+r.rnd.IntN(r.most))])
}
