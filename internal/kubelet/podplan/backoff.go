package podplan

import "time"

const (
	crashBase  = 10 * time.Second
	crashMax   = 5 * time.Minute
	crashReset = 10 * time.Minute

	pullBase = 10 * time.Second
	pullMax  = 5 * time.Minute
	// errImagePullShown is how long a failed pull is reported as ErrImagePull before it is reported
	// as ImagePullBackOff.
	errImagePullShown = 3 * time.Second
	// imageLook is how often the node is checked for an image while its pull is backed off: the CRI
	// has no event for it.
	imageLook = 5 * time.Second

	mountBase = 500 * time.Millisecond
	mountMax  = 2*time.Minute + 2*time.Second
)

// double returns base, 2·base, 4·base … for count 1, 2, 3 …, at most limit.
func double(base, limit time.Duration, count int) time.Duration {
	d := base
	for i := 1; i < count && d < limit; i++ {
		d *= 2
	}
	return min(d, limit)
}

// retryAfter returns how long a failed op waits before it is retried.
func retryAfter(k Kind, count int) time.Duration {
	switch k {
	case PullImage:
		return double(pullBase, pullMax, count)
	case MountVolume:
		return double(mountBase, mountMax, count)
	case RunSandbox:
		return double(500*time.Millisecond, 20*time.Second, count)
	case CreateContainer, StartContainer:
		return double(time.Second, 10*time.Second, count)
	default:
		return double(100*time.Millisecond, 10*time.Second, count)
	}
}

// crashWait returns how long the container waits after its last exit; nextWait returns the wait
// that the start after that records for the one after it.
func crashWait(h History, dead *Container, limit time.Duration) time.Duration {
	decided := h.Attempt > dead.Attempt // the start after dead has had its wait
	if h.Wait == 0 || decided || ranLong(dead) {
		return 0
	}
	return min(h.Wait, limit)
}

func nextWait(h History, dead *Container, limit time.Duration) time.Duration {
	if h.Wait == 0 || ranLong(dead) {
		return min(crashBase, limit)
	}
	return min(h.Wait*2, limit)
}

func ranLong(c *Container) bool {
	return !c.Started.IsZero() && c.Finished.Sub(c.Started) >= crashReset
}

func (n Node) crashLimit() time.Duration {
	if n.MaxCrashWait > 0 {
		return n.MaxCrashWait
	}
	return crashMax
}
