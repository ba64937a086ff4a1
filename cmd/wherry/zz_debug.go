package main

import (
	"os"
	"os/signal"
	"runtime"
	"runtime/pprof"
	"syscall"
	"fmt"
)

func init() {
	ch := make(chan os.Signal, 1)
	signal.Notify(ch, syscall.SIGUSR1)
	go func() {
		for range ch {
			runtime.GC()
			runtime.GC()
			f, _ := os.Create("/tmp/hm/heap.prof")
			_ = pprof.WriteHeapProfile(f)
			f.Close()
			var m runtime.MemStats
			runtime.ReadMemStats(&m)
			fmt.Fprintf(os.Stderr, "heapalloc %d inuse %d stack %d sys %d released %d goroutines %d\n", m.HeapAlloc>>20, m.HeapInuse>>20, m.StackInuse>>20, m.Sys>>20, m.HeapReleased>>20, runtime.NumGoroutine())
		}
	}()
}
