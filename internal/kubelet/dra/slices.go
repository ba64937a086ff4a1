package dra

import (
	"context"
	"time"

	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/klog/v2"
)

const (
	// patience is for how long a driver may be away before its slices go, as upstream's. Upstream removes those of all
	// drivers as soon as it starts; here these, too, get the time to come back.
	patience = 30 * time.Second
	// tryAgain is after how long a request is repeated that failed.
	tryAgain = 10 * time.Second
)

// changed notes that a driver has come or gone. It is called by Drivers.
func (m *Manager) changed(driver string, there bool) {
	m.mu.Lock()
	if _, was := m.away[driver]; there {
		delete(m.away, driver)
	} else if !was {
		m.away[driver] = time.Now()
	}
	m.mu.Unlock()
	select {
	case m.poke <- struct{}{}:
	default:
	}
	if there {
		m.came(driver)
	}
}

// others stands for all drivers that the kubelet does not know. They were there before it was started, and have the time
// to come back.
const others = ""

// RemoveSlices removes the ResourceSlices of this node's drivers that stay away, until ctx ends. node is the node's name.
func (m *Manager) RemoveSlices(ctx context.Context, node string) error {
	if m.Client == nil {
		return nil
	}
	m.mu.Lock()
	m.away[others] = time.Now()
	m.mu.Unlock()
	log := klog.FromContext(ctx)
	for {
		next := m.overdue(time.Now(), func(driver string) error {
			if driver != others {
				log.Info("A DRA driver has not come back, removing what it has told of its devices", "driver", driver)
			}
			err := m.Client.ResourceV1().ResourceSlices().DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{
				FieldSelector: m.selector(node, driver),
			})
			if err != nil && !apierrors.IsNotFound(err) && ctx.Err() == nil {
				log.Error(err, "Cannot remove the ResourceSlices of DRA drivers that are away, will try again", "driver", driver)
				return err
			}
			return nil
		})
		var due <-chan time.Time
		if next > 0 {
			due = time.After(next)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-m.poke:
		case <-due:
		}
	}
}

// selector selects the slices of a driver. A node may not list slices, but it may remove its own.
func (m *Manager) selector(node, driver string) string {
	of := []fields.Selector{fields.OneTermEqualSelector(resourcev1.ResourceSliceSelectorNodeName, node)}
	if driver != others {
		of = append(of, fields.OneTermEqualSelector(resourcev1.ResourceSliceSelectorDriver, driver))
		return fields.AndSelectors(of...).String()
	}
	m.mu.Lock()
	known := sets.KeySet(m.away)
	m.mu.Unlock()
	known = known.Union(m.connected()).Delete(others)
	for _, name := range sets.List(known) {
		of = append(of, fields.OneTermNotEqualSelector(resourcev1.ResourceSliceSelectorDriver, name))
	}
	return fields.AndSelectors(of...).String()
}

// overdue calls remove for each driver that has been away for too long, and returns when the next one will have been;
// zero if there is none.
func (m *Manager) overdue(now time.Time, remove func(driver string) error) (next time.Duration) {
	m.mu.Lock()
	var due []string
	sooner := func(d time.Duration) {
		if next == 0 || d < next {
			next = d
		}
	}
	for driver, since := range m.away {
		if left := since.Add(patience).Sub(now); left > 0 {
			sooner(left)
		} else {
			due = append(due, driver)
		}
	}
	m.mu.Unlock()
	for _, driver := range due {
		if m.Connected(driver) {
			continue // changed is about to say so
		}
		if remove(driver) != nil {
			sooner(tryAgain)
			continue
		}
		m.mu.Lock()
		if since, still := m.away[driver]; still && !since.Add(patience).After(now) {
			delete(m.away, driver)
		}
		m.mu.Unlock()
	}
	return next
}
