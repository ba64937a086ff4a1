// Package stacks runs functions on stacks that have grown already.
//
// A goroutine starts with 2 to 4 KiB of stack, and each time that is not enough, the runtime copies it
// to one of twice the size and corrects every pointer into it. The library's handlers start goroutines for
// each request and go deep, to 32 KiB: growing three times took an eighth of the CPU of a create.
package stacks

import (
	"fmt"
	"iter"
	"net/http"
	"runtime/debug"
	"sync"
	"time"
)

// tooLong is how long a stack lies idle, to twice as long, before it is given back.
const tooLong = 10 * time.Second

// Run calls f on a stack of the pool and returns when f does. A panic of f goes on in the caller, and has
// the stack of f in its text, unless it is http.ErrAbortHandler, which callers compare.
func Run(f func()) {
	c := idle.take()
	if c == nil {
		c = newCoroutine()
	}
	c.f = f
	if _, ok := c.resume(); ok { // never after a panic
		idle.put(c)
	}
}

// coroutine calls one function after another. Whoever resumes it goes on when the function has returned:
// the runtime switches between the two stacks directly, without its scheduler.
type coroutine struct {
	f      func()
	resume func() (struct{}, bool)
	end    func()
}

func newCoroutine() *coroutine {
	c := &coroutine{}
	c.resume, c.end = iter.Pull(func(yield func(struct{}) bool) {
		for {
			c.call()
			if !yield(struct{}{}) {
				return
			}
		}
	})
	return c
}

func (c *coroutine) call() {
	defer func() {
		switch p := recover(); p {
		case nil:
		case http.ErrAbortHandler:
			panic(p)
		default:
			panic(fmt.Sprintf("%v\n%s", p, debug.Stack()))
		}
	}()
	f := c.f
	c.f = nil
	f()
}

// pool has the coroutines that wait for work. The one that waited least is taken first, so that those that are not needed
// wait until they are given back.
type pool struct {
	mu      sync.Mutex
	free    []*coroutine
	unused  int // how many of free nobody has taken since the last sweep
	sweeper *time.Timer
}

var idle pool

// take returns nil if there is none.
func (p *pool) take() *coroutine {
	p.mu.Lock()
	defer p.mu.Unlock()
	last := len(p.free) - 1
	if last < 0 {
		return nil
	}
	c := p.free[last]
	p.free[last] = nil
	p.free = p.free[:last]
	p.unused = min(p.unused, last)
	return c
}

func (p *pool) put(c *coroutine) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.free = append(p.free, c)
	if p.sweeper == nil {
		p.sweeper = time.AfterFunc(tooLong, p.sweep)
	}
}

// sweep gives back what was not used since the last one. It comes again until nothing is left.
func (p *pool) sweep() {
	p.mu.Lock()
	out := append([]*coroutine(nil), p.free[:p.unused]...)
	p.free = append(p.free[:0], p.free[p.unused:]...)
	clear(p.free[len(p.free):cap(p.free)])
	p.unused = len(p.free)
	p.sweeper = nil
	if p.unused > 0 {
		p.sweeper = time.AfterFunc(tooLong, p.sweep)
	}
	p.mu.Unlock()
	for _, c := range out {
		c.end()
	}
}
