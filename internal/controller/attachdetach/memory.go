package attachdetach

import (
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// memory is what nobody but this process knows of a volume. All of it may be lost: a volume in use is then detached
// later than it could be, and an event may come twice. It is of the one who decides about the volume.
type memory struct {
	places map[string]*trace      // by node
	said   map[types.UID][]string // the topics of what the pods were told, while there is reason to
}

// trace is what has been done about a volume at a node.
type trace struct {
	unneeded        time.Time // since when no pod needs the volume there
	uncertain       bool      // an attachment was asked for, and nobody said whether it was made; see place
	node            types.UID // of a direct volume that is uncertain: the node that was told to have it
	asked, released time.Time // when the attachment was made or deleted, until the attacher is done
}

// at returns the trace of a node.
func (m *memory) at(node string) *trace {
	t := m.places[node]
	if t == nil {
		t = &trace{}
		m.places[node] = t
	}
	return t
}

// news reports whether the pod was not told of the topic before.
func (m *memory) news(pod types.UID, topic string) bool {
	return !slices.Contains(m.said[pod], topic)
}

// memories has the memory of each volume. Its methods may be called concurrently.
type memories struct {
	mu       sync.Mutex
	byVolume map[string]*memory
}

func newMemories() *memories { return &memories{byVolume: map[string]*memory{}} }

// of returns the memory of a volume.
func (m *memories) of(volume string) *memory {
	m.mu.Lock()
	defer m.mu.Unlock()
	out := m.byVolume[volume]
	if out == nil {
		out = &memory{places: map[string]*trace{}}
		m.byVolume[volume] = out
	}
	return out
}

// tidy forgets a volume of which there is nothing to know.
func (m *memories) tidy(volume string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if of := m.byVolume[volume]; of != nil && len(of.places) == 0 && len(of.said) == 0 {
		delete(m.byVolume, volume)
	}
}
