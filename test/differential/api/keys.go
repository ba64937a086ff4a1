package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"os"
	"slices"

	clientv3 "go.etcd.io/etcd/client/v3"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"wherry.dev/test/bench/servers"
)

// keys compares where in etcd, and as what, the servers keep their objects: each can go on with what the other left.
func (m *match) keys(ctx context.Context) error {
	ours, err := keysOf(ctx, m.ours.etcd)
	if err != nil {
		return err
	}
	theirs, err := keysOf(ctx, m.theirs.etcd)
	if err != nil {
		return err
	}
	all := maps.Clone(ours)
	maps.Copy(all, theirs)
	for _, key := range slices.Sorted(maps.Keys(all)) {
		m.asked.Add(1)
		if ours[key] != theirs[key] {
			m.note("key "+key, request{}, fmt.Sprintf("%s: ours %q, upstream's %q", key, ours[key], theirs[key]))
		}
	}
	return nil
}

// keysOf returns the keys of an etcd, with the version and kind of what they hold.
func keysOf(ctx context.Context, etcd string) (_ map[string]string, err error) {
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{etcd}, Context: ctx})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, client.Close()) }()
	found, err := client.Get(ctx, "/registry/", clientv3.WithPrefix())
	if err != nil {
		return nil, err
	}
	out := map[string]string{}
	for _, kv := range found.Kvs {
		out[string(kv.Key)] = kindOf(kv.Value)
	}
	return out, nil
}

// kindOf returns the version and kind of a stored object.
func kindOf(value []byte) string {
	if proto, ok := bytes.CutPrefix(value, []byte("k8s\x00")); ok {
		var u runtime.Unknown
		if err := u.Unmarshal(proto); err != nil {
			return err.Error()
		}
		return "protobuf " + u.APIVersion + " " + u.Kind
	}
	var t metav1.TypeMeta
	if err := json.Unmarshal(value, &t); err != nil {
		return "bytes"
	}
	return "JSON " + t.APIVersion + " " + t.Kind
}

// data starts one of the servers on the data of the other, and compares what both say of each object that is stored.
func (m *match) data(ctx context.Context, about string, bases []base, whose *server, start servers.Start) (err error) {
	dir, err := os.MkdirTemp(m.dir, "data-")
	if err != nil {
		return err
	}
	if err := servers.Prepare(dir); err != nil {
		return err
	}
	started, err := start(ctx, dir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, started.Stop()) }()
	other, err := newServer(started)
	if err != nil {
		return err
	}
	for _, b := range bases {
		if b.ours == nil {
			continue
		}
		r := request{method: http.MethodGet, path: b.path(text(b.ours["metadata"].(map[string]any), "name"))}
		want, err := whose.ask(ctx, r)
		if err != nil {
			return err
		}
		var got answer
		err = soon(ctx, func(ctx context.Context) (_ bool, err error) { // a custom resource is not there at once
			got, err = other.ask(ctx, r)
			return got.code != http.StatusNotFound, err
		})
		if err != nil && got.code != http.StatusNotFound { // that is a difference
			return err
		}
		m.asked.Add(1)
		for _, d := range compare(got, want, true) {
			m.note(about+": "+b.kind, r, d)
		}
	}
	return nil
}
