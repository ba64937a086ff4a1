package storage

import (
	"context"
	"errors"
	"fmt"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"wherry.dev/internal/disk"
)

// Compact drops all revisions before the present one at once, as the API server does every
// CompactionInterval with older ones, and returns that one. Watches that are behind have to list again.
func (b *Backend) Compact(ctx context.Context) (revision int64, err error) {
	now, err := b.client.KV.Get(ctx, prefix+"/health")
	if err != nil {
		return 0, fmt.Errorf("compact: %w", err)
	}
	revision = now.Header.Revision
	_, err = b.client.Compact(ctx, revision, clientv3.WithCompactPhysical())
	if err != nil && !errors.Is(err, rpctypes.ErrCompacted) {
		return 0, fmt.Errorf("compact: %w", err)
	}
	return revision, nil
}

// Defragmented is the size of a member's database before and after, in bytes.
type Defragmented struct {
	Member string `json:"member"`
	Before int64  `json:"before"`
	After  int64  `json:"after"`
}

// Defragment gives the room of what was compacted back to the disk, of one member after the other. A
// member answers nothing meanwhile. If the cluster has reached its quota, it accepts writes again
// afterwards.
func (b *Backend) Defragment(ctx context.Context) ([]Defragmented, error) {
	if b.embedded != nil {
		d, err := b.embedded.defragment()
		return []Defragmented{d}, err
	}
	var out []Defragmented
	for _, member := range b.cfg.Servers {
		d := Defragmented{Member: member}
		err := b.sizeOf(ctx, member, &d.Before)
		if err == nil {
			_, err = b.client.Defragment(ctx, member)
		}
		if err == nil {
			err = b.sizeOf(ctx, member, &d.After)
		}
		if err != nil {
			return out, fmt.Errorf("defragment etcd at %s: %w", member, err)
		}
		out = append(out, d)
	}
	return out, b.disarm(ctx)
}

func (b *Backend) sizeOf(ctx context.Context, member string, size *int64) error {
	status, err := b.client.Status(ctx, member)
	if err == nil {
		*size = status.DbSize
	}
	return err
}

// disarm ends the alarms of an external cluster's quota. Members that are still too large raise them
// again.
func (b *Backend) disarm(ctx context.Context) error {
	alarms, err := b.client.AlarmList(ctx)
	if err != nil {
		return fmt.Errorf("etcd's alarms: %w", err)
	}
	return endQuotaAlarms(ctx, b.client, alarms.Alarms)
}

func endQuotaAlarms(ctx context.Context, client clientv3.Maintenance, alarms []*etcdserverpb.AlarmMember) error {
	for _, alarm := range alarms {
		if alarm.GetAlarm() != etcdserverpb.AlarmType_NOSPACE {
			continue
		}
		if _, err := client.AlarmDisarm(ctx, (*clientv3.AlarmMember)(alarm)); err != nil {
			return fmt.Errorf("end etcd's alarm of its quota: %w", err)
		}
	}
	return nil
}

func (e *embedded) defragment() (Defragmented, error) {
	database := e.etcd.Server.Backend()
	d := Defragmented{Member: memberName, Before: database.Size()}
	room, err := disk.Look(e.space.dir)
	if err != nil {
		return d, err
	}
	// etcd copies the database. It cannot go on if the disk fills meanwhile.
	if need := uint64(database.SizeInUse()) + refuseBelow + reserveBytes; room.Free < need {
		return d, insufficient("defragment: %d MiB are free in %s, and a copy of the database takes %d MiB: free some space",
			room.Free>>20, e.space.dir, need>>20)
	}
	done := make(chan error, 1) // etcd's own service wants a health server, which goes with a listener
	leave, err := e.door.enter()
	if err != nil {
		return d, unavailable(err)
	}
	go func() {
		defer leave()
		done <- database.Defrag()
	}()
	select {
	case err = <-done:
	case <-e.end.failed():
		return d, unavailable(e.end.err())
	}
	e.space.forget()
	d.After = database.Size()
	return d, err
}
