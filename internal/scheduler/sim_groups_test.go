package scheduler_test

import (
	"fmt"
	"slices"

	v1 "k8s.io/api/core/v1"
	schedulingv1beta1 "k8s.io/api/scheduling/v1beta1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// squad is a pod group of a life. Its pods are all alike.
type squad struct {
	name  string
	least int
	made  int // how many pods it has had
	// priority is the group's, and its pods'.
	priority int32
	// zoned means that all of its pods are to be in one zone.
	zoned bool
	// shares means that its pods have a claim for a device in common.
	shares bool
	// torn means that the scheduler was stopped while the group existed: it may have stopped between two bindings.
	torn bool
}

// groupStep makes a group, or another pod of one, or changes how many of it must run.
func (l *life) groupStep() {
	if !l.grouped {
		return
	}
	groups := l.client.SchedulingV1beta1().PodGroups("default")
	fail := func(err error) {
		if err != nil {
			l.t.Fatal(err)
		}
	}
	switch l.r.IntN(5) {
	case 0:
		s := &squad{name: l.name("g"), least: l.r.IntN(5), priority: int32(l.r.IntN(4))}
		l.squads = append(l.squads, s)
		g := gangOf(s.name, int32(s.least), s.priority)
		if l.r.IntN(3) == 0 {
			whole(g)
		}
		if s.zoned = l.cfg.Topology && l.r.IntN(2) == 0; s.zoned {
			g.Spec.SchedulingConstraints = &schedulingv1beta1.PodGroupSchedulingConstraints{
				Topology: []schedulingv1beta1.TopologyConstraint{{Key: v1.LabelTopologyZone}},
			}
		}
		if s.shares = l.driven && l.r.IntN(2) == 0; s.shares {
			g.Spec.ResourceClaims = []schedulingv1beta1.PodGroupResourceClaim{{Name: "dev", ResourceClaimTemplateName: new(template)}}
		}
		l.note("group %s: at least %d, priority %d, in one zone %v, shares a device %v, disruption mode %+v",
			s.name, s.least, s.priority, s.zoned, s.shares, g.Spec.DisruptionMode)
		if l.r.IntN(3) > 0 { // else the pods come first
			_, err := groups.Create(l.t.Context(), g, metav1.CreateOptions{})
			fail(err)
		}
		cpu, zone := pick(l, "500m", "1", "2"), pick(l, "", "", "a")
		for range max(1, s.least-1+l.r.IntN(3)) {
			l.join(s, cpu, zone, priority(s.priority))
		}
		_, err := groups.Get(l.t.Context(), s.name, metav1.GetOptions{})
		if err != nil {
			_, err = groups.Create(l.t.Context(), g, metav1.CreateOptions{})
			fail(err)
		}
	case 1:
		if len(l.squads) == 0 {
			return
		}
		s := pick(l, l.squads...)
		if s.least == 0 {
			return // a basic group stays one
		}
		s.least, s.torn = 1+l.r.IntN(4), true
		l.note("group %s: at least %d now", s.name, s.least)
		g, err := groups.Get(l.t.Context(), s.name, metav1.GetOptions{})
		fail(err)
		g.Spec.SchedulingPolicy.Gang.MinCount = int32(s.least)
		_, err = groups.Update(l.t.Context(), g, metav1.UpdateOptions{})
		fail(err)
	}
}

func (l *life) join(s *squad, cpu, zone string, important func(*v1.Pod)) {
	p := pod(l.name("m"), cpu, important, labelled("app", "squad"), member(s.name))
	if zone != "" {
		p.Spec.NodeSelector = map[string]string{v1.LabelTopologyZone: zone}
	}
	if s.shares {
		withTemplate(template)(p)
	}
	s.made++
	l.note("pod %s of %s: %s CPU, priority %d, %s", p.Name, s.name, cpu, *p.Spec.Priority, wants(p))
	l.create(p)
}

func squadOf(p *v1.Pod) string {
	if g := p.Spec.SchedulingGroup; g != nil {
		return *g.PodGroupName
	}
	return ""
}

// checkGroups returns what is wrong with the groups of a cluster at rest. Their pods are all alike and do not care
// about others, so that it does not matter where each of them goes.
func (l *life) checkGroups(w world, pods []*v1.Pod) string {
	for _, s := range l.squads {
		bound, exist := 0, 0
		var waits []*v1.Pod
		for _, p := range pods {
			switch {
			case squadOf(p) != s.name:
				continue
			case p.Spec.NodeName == "":
				waits = append(waits, p)
			default:
				bound++
			}
			exist++
		}
		if bound > 0 && bound < s.least && exist == s.made && !s.torn {
			return fmt.Sprintf("%d pods of the gang %s run, and at least %d must", bound, s.name, s.least)
		}
		if exist < s.least {
			continue
		}
		if s.shares {
			if why := w.holds(s, waits, bound); why != "" {
				return why
			}
			continue // where its first pod goes decides about the others, and may not be the best place for them
		}
		places := []map[string]*v1.Node{w.nodes}
		if s.zoned {
			places = w.zones(s.name)
		}
		for _, nodes := range places {
			if could := w.room(waits, nodes); could > 0 && bound+could >= s.least {
				return fmt.Sprintf("%d pods of the group %s run and %d more could, at least %d must; one was told %q", bound, s.name, could, s.least, told(waits[0]))
			}
			without := w
			without.pods = slices.DeleteFunc(slices.Clone(w.pods), func(p *v1.Pod) bool { return *p.Spec.Priority < s.priority })
			if could := without.room(waits, nodes); could > 0 && bound+could >= s.least {
				return fmt.Sprintf("%d pods of the group %s run and %d more could without pods of a lower priority than %d, at least %d must; one was told %q",
					bound, s.name, could, s.priority, s.least, told(waits[0]))
			}
		}
	}
	return ""
}

// holds returns which device a group has though none of its pods has found a node with it.
func (w world) holds(s *squad, waits []*v1.Pod, bound int) string {
	for _, p := range waits {
		for _, name := range devicesOf(p) {
			c := w.deviceClaims[name]
			if c == nil {
				return fmt.Sprintf("pod %s of the group %s has no claim", p.Name, s.name)
			}
			if bound == 0 && len(given(c)) > 0 {
				return fmt.Sprintf("the group %s waits, and its claim %s has %v; pod %s was told %q", s.name, name, given(c), p.Name, told(p))
			}
		}
	}
	return ""
}

// zones returns the nodes of each zone in which further pods of a group may be that is to be in one: all, or that of its
// pods that run. If nodes have changed their zones under these, it may be that none is left.
func (w world) zones(group string) (out []map[string]*v1.Node) {
	zones, taken := map[string]map[string]*v1.Node{}, map[string]bool{}
	for name, n := range w.nodes {
		zone := n.Labels[v1.LabelTopologyZone]
		if zones[zone] == nil {
			zones[zone] = map[string]*v1.Node{}
		}
		zones[zone][name] = n
	}
	for _, p := range w.pods {
		if squadOf(p) != group {
			continue
		}
		n := w.nodes[p.Spec.NodeName]
		if n == nil {
			return nil
		}
		taken[n.Labels[v1.LabelTopologyZone]] = true
	}
	for zone, nodes := range zones {
		if zone != "" && (len(taken) == 0 || len(taken) == 1 && taken[zone]) {
			out = append(out, nodes)
		}
	}
	return out
}

// room returns for how many of the pods there is room at once on some nodes.
func (w world) room(pods []*v1.Pod, nodes map[string]*v1.Node) (could int) {
	for _, p := range pods {
		for _, n := range nodes {
			if w.fits(p, n) == "" {
				on := p.DeepCopy()
				on.Spec.NodeName = n.Name
				w.pods = append(slices.Clip(w.pods), on)
				could++
				break
			}
		}
	}
	return could
}
