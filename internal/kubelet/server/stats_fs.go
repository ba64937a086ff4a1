package server

import (
	"errors"
	"path/filepath"
	"time"

	csi "github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	stats "k8s.io/kubelet/pkg/apis/stats/v1alpha1"

	"wherry.dev/internal/disk"
	"wherry.dev/internal/kubelet/criconfig"
	"wherry.dev/internal/kubelet/volume"
)

// fsStats returns the file system that a directory is on; nil if there is no such directory.
func fsStats(dir string, t metav1.Time) *stats.FsStats {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return nil
	}
	size := uint64(st.Bsize)
	available, capacity, used := st.Bavail*size, st.Blocks*size, (st.Blocks-st.Bfree)*size
	inodes, free := st.Files, st.Ffree
	inUse := inodes - free
	return &stats.FsStats{
		Time: t, AvailableBytes: &available, CapacityBytes: &capacity, UsedBytes: &used, InodesFree: &free, Inodes: &inodes, InodesUsed: &inUse,
	}
}

// folder is what was counted below a directory.
type folder struct {
	at            time.Time
	bytes, inodes uint64
}

// longestMeasure is how long the count of one directory may take.
const longestMeasure = 5 * time.Second

// measure counts what lies below a directory, files with several names once. Walking large trees is
// expensive, so the last count is reused for a while.
func (s *Stats) measure(dir string, now time.Time) folder {
	s.mu.Lock()
	old, ok := s.dirs[dir]
	s.mu.Unlock()
	if ok && now.Sub(old.at) < s.VolumeAge {
		return old
	}
	f := folder{at: now}
	// What cannot be counted does not count; of a tree that is too large, a part does.
	used, _ := disk.Tree(dir, disk.Bounds{Until: time.Now().Add(longestMeasure)})
	f.bytes, f.inodes = used.Bytes, used.Inodes
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.dirs == nil {
		s.dirs = map[string]folder{}
	}
	for name, o := range s.dirs { // of pods that are gone
		if now.Sub(o.at) > 2*s.VolumeAge {
			delete(s.dirs, name)
		}
	}
	s.dirs[dir] = f
	return f
}

// usage returns a directory's share of its file system.
func (s *Stats) usage(dir string, now time.Time) *stats.FsStats {
	out := fsStats(dir, metav1.NewTime(now))
	if out == nil {
		return nil
	}
	f := s.measure(dir, now)
	out.UsedBytes, out.InodesUsed = &f.bytes, &f.inodes
	return out
}

// logs returns the directory of a container's logs.
func (s *Stats) logs(pod *v1.Pod, container string, now time.Time) *stats.FsStats {
	if s.PodLogs == "" {
		return nil
	}
	return s.usage(filepath.Join(criconfig.LogDir(s.PodLogs, pod), container), now)
}

func hasClaims(pod *v1.Pod) bool {
	for i := range pod.Spec.Volumes {
		if v := &pod.Spec.Volumes[i]; v.PersistentVolumeClaim != nil || v.Ephemeral != nil {
			return true
		}
	}
	return false
}

// foreignPatience is how long the file system of a volume that is not the pod's own may take to answer.
const foreignPatience = time.Second

// foreign returns the file system of a volume that is not the pod's own. One that does not answer, like that of a server
// which is away, is left out.
func (s *Stats) foreign(dir string, t metav1.Time) *stats.FsStats {
	answer := s.asked.DoChan(dir, func() (any, error) {
		if s.DriverUsage != nil {
			usage, err := s.DriverUsage(dir)
			if !errors.Is(err, volume.ErrNoUsage) {
				return usageStats(usage, t), nil // nothing, if the driver does not say
			}
		}
		return fsStats(dir, t), nil
	})
	select {
	case a := <-answer:
		out, _ := a.Val.(*stats.FsStats)
		return out
	case <-time.After(foreignPatience):
		return nil
	}
}

// usageStats translates what a driver says; nil if it says nothing.
func usageStats(usage []*csi.VolumeUsage, t metav1.Time) *stats.FsStats {
	if len(usage) == 0 {
		return nil
	}
	out := &stats.FsStats{Time: t}
	number := func(n int64) *uint64 { return new(uint64(max(n, 0))) }
	for _, u := range usage {
		switch u.GetUnit() {
		case csi.VolumeUsage_BYTES:
			out.AvailableBytes, out.CapacityBytes, out.UsedBytes = number(u.GetAvailable()), number(u.GetTotal()), number(u.GetUsed())
		case csi.VolumeUsage_INODES:
			out.InodesFree, out.Inodes, out.InodesUsed = number(u.GetAvailable()), number(u.GetTotal()), number(u.GetUsed())
		}
	}
	return out
}

// volumes returns the pod's volumes on the node, measured by directory. A volume with a file system of its own is as
// large as that file system, and so is one of a claim. onDisk is what the pod's own volumes hold of the node's disk.
func (s *Stats) volumes(pod *v1.Pod, now time.Time) (out []stats.VolumeStats, onDisk []*stats.FsStats) {
	if s.VolumeAge < 0 {
		return nil, nil // measuring is switched off
	}
	places, err := volume.Places(criconfig.Dirs{Root: s.RootDir}, pod.UID)
	if err != nil {
		return nil, nil
	}
	at := metav1.NewTime(now)
	for _, p := range places {
		v := stats.VolumeStats{Name: p.Name}
		if p.Claim != "" {
			v.PVCRef = &stats.PVCReference{Name: p.Claim, Namespace: pod.Namespace}
		}
		var found *stats.FsStats
		switch {
		case p.Foreign && s.OwnOnly:
		case p.Foreign:
			found = s.foreign(p.Path, at)
		case isMountPoint(p.Path):
			found = fsStats(p.Path, at)
		default:
			found = s.usage(p.Path, now)
			onDisk = append(onDisk, found)
		}
		if found != nil {
			v.FsStats = *found
			out = append(out, v)
		}
	}
	return out, onDisk
}

// ephemeral returns what a pod uses of the node's disk: writable layers, logs, its own volumes without a file system of
// their own, and the other files that containers can write to: /etc/hosts and termination messages.
func (s *Stats) ephemeral(pod *v1.Pod, p *stats.PodStats, volumes []*stats.FsStats, now time.Time) *stats.FsStats {
	out := fsStats(s.RootDir, metav1.NewTime(now))
	if out == nil {
		return nil
	}
	var used, inodes uint64
	add := func(f *stats.FsStats) {
		if f != nil && f.UsedBytes != nil {
			used += *f.UsedBytes
		}
		if f != nil && f.InodesUsed != nil {
			inodes += *f.InodesUsed
		}
	}
	for i := range p.Containers {
		add(p.Containers[i].Rootfs)
		add(p.Containers[i].Logs)
	}
	for _, v := range volumes {
		add(v)
	}
	for _, path := range []string{criconfig.Dirs{Root: s.RootDir}.EtcHosts(pod.UID), criconfig.Dirs{Root: s.RootDir}.Containers(pod.UID)} {
		add(s.usage(path, now))
	}
	out.UsedBytes, out.InodesUsed = &used, &inodes
	return out
}

// isMountPoint reports whether a directory is on another file system than its parent.
func isMountPoint(dir string) bool {
	var own, parent unix.Stat_t
	return unix.Stat(dir, &own) == nil && unix.Stat(filepath.Dir(dir), &parent) == nil && own.Dev != parent.Dev
}
