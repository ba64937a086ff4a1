package stacks

import (
	"errors"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// deep uses n KiB of stack and returns on which goroutine.
func deep(n int) string {
	var room [1 << 10]byte
	if n > 0 {
		defer func() { room[0]++ }()
		return deep(n - 1)
	}
	text := make([]byte, 64)
	name, _, _ := strings.Cut(string(text[:runtime.Stack(text, false)]), " [")
	return name
}

func TestStacksAreUsedAgain(t *testing.T) {
	var first, second, third string
	Run(func() {
		first = deep(20)
		Run(func() { third = deep(20) })
	})
	Run(func() { second = deep(20) })
	if first == deep(0) {
		t.Error("f runs on the caller's stack")
	}
	if second != first && second != third {
		t.Errorf("%s ran on neither of %s and %s", second, first, third)
	}
	if first == third {
		t.Error("two functions had one stack at once")
	}
}

func TestManyAtOnce(t *testing.T) {
	var all sync.WaitGroup
	var mu sync.Mutex
	sum := 0
	for i := range 100 {
		all.Go(func() {
			for range 100 {
				Run(func() {
					deep(i % 32)
					mu.Lock()
					defer mu.Unlock()
					sum++
				})
			}
		})
	}
	all.Wait()
	if sum != 100*100 {
		t.Errorf("%d calls", sum)
	}
}

func TestPanicsGoOnInTheCaller(t *testing.T) {
	for _, c := range []struct {
		value any
		is    func(p any) bool
	}{
		{http.ErrAbortHandler, func(p any) bool { return p == any(http.ErrAbortHandler) }},
		{errors.New("what went wrong"), func(p any) bool {
			text, ok := p.(string)
			return ok && strings.HasPrefix(text, "what went wrong\n") && strings.Contains(text, "breakDown")
		}},
	} {
		func() {
			defer func() {
				if p := recover(); !c.is(p) {
					t.Errorf("the caller got %v", p)
				}
			}()
			Run(func() { breakDown(c.value) })
		}()
	}
	ran := false
	Run(func() { ran = true })
	if !ran {
		t.Error("nothing runs after a panic")
	}
}

func breakDown(value any) { panic(value) }

func TestGoexitEndsTheCaller(t *testing.T) {
	done := make(chan bool)
	go func() {
		ended := true
		defer func() { done <- ended }()
		Run(runtime.Goexit)
		ended = false
	}()
	if !<-done {
		t.Error("the caller went on")
	}
}

func TestStacksThatNobodyNeedsAreGivenBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var p pool
		var held []*coroutine
		for range 3 {
			c := newCoroutine()
			c.f = func() {}
			c.resume()
			held = append(held, c)
		}
		for _, c := range held {
			p.put(c)
		}
		rest := func() int {
			synctest.Wait()
			p.mu.Lock()
			defer p.mu.Unlock()
			return len(p.free)
		}
		time.Sleep(tooLong)
		if n := rest(); n != 3 {
			t.Errorf("%d are left of three that were used just now", n)
		}
		p.put(p.take())
		time.Sleep(tooLong)
		if n := rest(); n != 1 {
			t.Errorf("%d are left, one was used", n)
		}
		time.Sleep(tooLong)
		if n := rest(); n != 0 || p.sweeper != nil {
			t.Errorf("%d are left, a timer: %v", n, p.sweeper != nil)
		}
		if p.take() != nil {
			t.Error("a coroutine was given back and is still there")
		}
	})
}
