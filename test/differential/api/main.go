// Api asks Wherry's API server and upstream's kube-apiserver the same, and compares what they answer: discovery, the
// objects that are stored of what was sent, with all defaults, and the errors and warnings where something is wrong.
// What is sent are valid objects of every kind, and the same with one field changed at a time: left out, empty, too
// long, below zero, twice, or as in upstream's example of an object that has every field. They are read in all forms
// and by all selectors, and patched in all ways. Nearly all of it is a dry run, so that each request stands for itself.
//
//	go run ./test/differential/api -kube-apiserver /path -etcd /path [-kinds Pod,Service] bin/wherry
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"wherry.dev/test/bench/servers"
	"wherry.dev/test/program"
)

type options struct {
	wherry, upstream, etcd string
	examples               string
	kinds, parts           []string
	most                   int
	words, all             bool
}

func main() {
	var o options
	flag.StringVar(&o.upstream, "kube-apiserver", "", "upstream's API server")
	flag.StringVar(&o.etcd, "etcd", "", "the etcd that it needs")
	dir := flag.String("dir", "", "where the data lie while it runs; by default where temporary files do")
	flag.StringVar(&o.examples, "examples", "", "the folder of objects that have every field; by default that of the module k8s.io/api")
	kinds := flag.String("kinds", "", "the kinds to look at; by default all")
	only := flag.String("parts", "", "what to ask: variants of objects, reads, patches, calls, keys in etcd, data of the other; by default all")
	flag.BoolVar(&o.words, "words", false, "compare the words of errors, too, and not only the fields")
	flag.BoolVar(&o.all, "all", false, "print the differences that are known, too")
	flag.IntVar(&o.most, "differences", 10000, "print so many differences")
	flag.Parse()
	if flag.NArg() != 1 || o.upstream == "" || o.etcd == "" {
		fmt.Fprintln(os.Stderr, "usage: api -kube-apiserver PATH -etcd PATH [flags] WHERRY")
		os.Exit(2)
	}
	if *kinds != "" {
		o.kinds = strings.Split(*kinds, ",")
	}
	if *only != "" {
		o.parts = strings.Split(*only, ",")
	}
	o.wherry = flag.Arg(0)
	program.Main("differential", func(ctx context.Context) error { return run(ctx, *dir, o) })
}

// run starts both servers, asks them, and removes everything.
func run(ctx context.Context, parent string, o options) (err error) {
	dir, err := os.MkdirTemp(parent, "wherry-differential-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	for _, path := range []*string{&o.wherry, &o.upstream, &o.etcd} {
		if *path, err = filepath.Abs(*path); err != nil {
			return err
		}
	}
	m := &match{options: o, dir: dir, seen: map[string]*difference{}}
	for _, s := range []struct {
		name  string
		start servers.Start
		to    **server
	}{
		{"wherry", servers.WherryOn(o.wherry, o.etcd), &m.ours},
		{"upstream", servers.Upstream(o.upstream, o.etcd, "--allow-privileged"), &m.theirs},
	} {
		in := filepath.Join(dir, s.name)
		if err := errors.Join(os.Mkdir(in, 0o700), servers.Prepare(in)); err != nil {
			return err
		}
		started, err := s.start(ctx, in)
		if err != nil {
			return fmt.Errorf("%s: %w", s.name, err)
		}
		defer func() { err = errors.Join(err, started.Stop()) }()
		if *s.to, err = newServer(started); err != nil {
			return err
		}
	}
	return m.play(ctx)
}

// match is both servers, and what they differed in.
type match struct {
	options
	dir          string
	ours, theirs *server

	asked atomic.Int64
	mu    sync.Mutex
	seen  map[string]*difference
	order []string

	excused int // known differences
}

// play asks everything. It returns an error if there was a difference.
func (m *match) play(ctx context.Context) error {
	start := time.Now()
	err := m.compareAll(ctx)
	for i, key := range m.order {
		if i == m.most {
			break
		}
		fmt.Println(m.seen[key])
	}
	fmt.Printf("%d requests to each, %d sorts of differences, and %d differences that are known; %s\n", m.asked.Load(), len(m.order), m.excused, time.Since(start).Round(time.Second))
	if err == nil && len(m.order) > 0 {
		err = errors.New("the servers differ")
	}
	return err
}
