package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"

	clientv3 "go.etcd.io/etcd/client/v3"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
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
