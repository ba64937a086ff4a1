package attachdetach

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// there is a place, from what there is of it.
func there(node string, of ...any) place {
	p := place{node: node}
	for _, o := range of {
		switch o := o.(type) {
		case *v1.Node:
			p.state = o
		case *v1.Pod:
			p.pods, p.volume = append(p.pods, o), newVolume()
		case *storagev1.VolumeAttachment:
			p.attachment = o
		case time.Duration:
			p.unneeded = began.Add(o)
		case bool:
			p.uncertain = o
		default:
			panic(fmt.Sprintf("%T", o))
		}
	}
	return p
}

// text is a plan in words.
func (p plan) text() string {
	var out []string
	for _, s := range p.steps {
		verb := []string{"attach", "report", "withdraw", "detach"}[s.action]
		if s.force != "" {
			verb += "(" + s.force + ")"
		}
		out = append(out, verb+" "+s.at.node)
	}
	for _, s := range p.says {
		out = append(out, "tell "+s.pod.Name)
	}
	if !p.again.IsZero() {
		out = append(out, "again in "+p.again.Sub(began).String())
	}
	return strings.Join(out, ", ")
}

func TestDecisions(t *testing.T) {
	pod, second := newPod("p", "a"), newPod("q", "b", later)
	shared := func(f *facts) { f.exclusive = false }
	unattachable := func(f *facts) { f.attachable = false }
	after := func(d time.Duration) func(*facts) { return func(f *facts) { f.now = began.Add(d) } }
	patient := func(f *facts) { f.options.NoForceDetach = true }
	for _, test := range []struct {
		name   string
		places []place
		want   string
		change []func(*facts)
	}{
		{"a pod comes", []place{there("a", newNode("a"), pod)}, "attach a", nil},
		{"nobody comes", nil, "", nil},
		{"the node is gone", []place{there("a", pod)}, "", nil},
		{"the node attaches by itself", []place{there("a", newNode("a", unmanaged), pod)}, "", nil},
		{"the driver does not attach", []place{there("a", newNode("a"), pod)}, "", []func(*facts){unattachable}},
		{"nobody has answered", []place{there("a", newNode("a"), pod, true)}, "attach a", nil},

		{"the attacher is at work", []place{there("a", newNode("a"), pod, newAttachment("a"))}, "again in 2m0s", nil},
		{"the attacher does not work", []place{there("a", newNode("a"), pod, newAttachment("a"))}, "tell p, again in 6m0s", []func(*facts){after(5 * time.Minute)}},
		{"the attacher has failed", []place{there("a", newNode("a"), pod, newAttachment("a", failing))}, "tell p", nil},
		{"attached", []place{there("a", newNode("a"), pod, newAttachment("a", isAttached))}, "report a", nil},
		{"attached and reported", []place{there("a", newNode("a", reporting, using), pod, newAttachment("a", isAttached))}, "", nil},
		{"attached, and the node is gone", []place{there("a", pod, newAttachment("a", isAttached))}, "", nil},
		{"somebody deletes the attachment", []place{there("a", newNode("a", reporting, using), pod, newAttachment("a", isAttached, leaving))}, "withdraw a", nil},
		{"somebody has deleted the attachment", []place{there("a", newNode("a", reporting, using), pod)}, "withdraw a", nil},
		{"the attacher has changed its mind", []place{there("a", newNode("a", reporting), pod, newAttachment("a"))}, "withdraw a, again in 2m0s", nil},
		{"needed again while it goes", []place{there("a", newNode("a"), pod, newAttachment("a", isAttached, leaving))}, "", nil},
		{"needed again while it cannot go", []place{there("a", newNode("a"), pod, newAttachment("a", isAttached, leaving, failingToLeave))}, "tell p", nil},

		{"two nodes, one volume", []place{there("a", newNode("a"), newPod("p", "a", later)), there("b", newNode("b"), newPod("q", "b"))}, "attach b", nil},
		{"two nodes, a volume for many", []place{there("a", newNode("a"), pod), there("b", newNode("b"), second)}, "attach a, attach b", []func(*facts){shared}},
		{"another has it", []place{there("a", newNode("a", reporting), pod, newAttachment("a", isAttached)), there("b", newNode("b"), second)}, "tell q", nil},
		{"another is about to have it", []place{there("a", newNode("a"), pod, newAttachment("a")), there("b", newNode("b"), second)}, "again in 2m0s", nil},
		{"another may have it", []place{there("a", newNode("a"), true, time.Duration(0)), there("b", newNode("b"), second)}, "detach a", nil},
		{"another has it, and lets go", []place{there("a", newNode("a", reporting), newAttachment("a", isAttached)), there("b", newNode("b"), second)}, "detach a", nil},
		{"another is losing it", []place{there("a", newNode("a"), newAttachment("a", isAttached, leaving)), there("b", newNode("b"), second)}, "", nil},
		{"another cannot lose it", []place{there("a", newNode("a"), newAttachment("a", isAttached, leaving, failingToLeave)), there("b", newNode("b"), second)}, "tell q", nil},
		{"another has lost it", []place{there("a", newNode("a")), there("b", newNode("b"), second)}, "attach b", nil},
		{"another is still told that it has it", []place{there("a", newNode("a", reporting)), there("b", newNode("b"), second)}, "withdraw a", nil},
		{"another has it mounted, and lost it by force", []place{there("a", newNode("a", silent, using)), there("b", newNode("b"), second)}, "attach b", nil},

		{"not needed", []place{there("a", newNode("a", reporting), newAttachment("a", isAttached))}, "detach a", nil},
		{"not needed, and it is not known whether it is attached", []place{there("a", newNode("a"), newAttachment("a", failing))}, "detach a", nil},
		{"not to be attached any more", []place{there("a", newNode("a", reporting), pod, newAttachment("a", isAttached))}, "detach a", []func(*facts){unattachable}},
		{"not needed and in use", []place{there("a", newNode("a", reporting, using), newAttachment("a", isAttached))}, "", nil},
		{"in use for an hour", []place{there("a", newNode("a", reporting, using), newAttachment("a", isAttached), time.Duration(0))}, "", []func(*facts){after(time.Hour)}},
		{"in use, the node is silent", []place{there("a", newNode("a", reporting, using, silent), newAttachment("a", isAttached), time.Minute)}, "again in 7m0s", []func(*facts){after(time.Minute)}},
		{"in use, silent for long", []place{there("a", newNode("a", reporting, using, silent), newAttachment("a", isAttached), time.Minute)}, "detach(timeout) a", []func(*facts){after(7 * time.Minute)}},
		{"in use, silent, and force is off", []place{there("a", newNode("a", reporting, using, silent), newAttachment("a", isAttached), time.Minute)}, "", []func(*facts){after(time.Hour), patient}},
		{"in use, the node is out of service", []place{there("a", newNode("a", reporting, using, silent, lost), newAttachment("a", isAttached), time.Duration(0))}, "detach(out-of-service) a", []func(*facts){patient}},
		{"not in use, and silent", []place{there("a", newNode("a", reporting, silent), newAttachment("a", isAttached))}, "detach a", nil},
		{"the node is gone, and nobody needs it", []place{there("a", newAttachment("a", isAttached), time.Duration(0))}, "again in 6m0s", nil},
		{"the node is gone for long", []place{there("a", newAttachment("a", isAttached), time.Duration(0))}, "detach(timeout) a", []func(*facts){after(6 * time.Minute)}},
		{"the node is back, and says nothing yet", []place{there("a", newNode("a", made), newAttachment("a", isAttached), time.Duration(0))}, "again in 6m0s", nil},
		{"going", []place{there("a", newNode("a", reporting), newAttachment("a", isAttached, leaving))}, "withdraw a", nil},
		{"gone", []place{there("a", newNode("a", reporting, using))}, "withdraw a", nil},
		{"gone and forgotten", []place{there("a", newNode("a", using))}, "", nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			f := &facts{name: name, driver: driver, handle: handle, attachable: true, exclusive: true, places: test.places, now: began}
			for _, change := range test.change {
				change(f)
			}
			if got := decide(f).text(); got != test.want {
				t.Errorf("plan %q, want %q", got, test.want)
			}
		})
	}
}

// A volume that the node attaches itself has no attachment: what nodes say is all there is.
func TestDecisionsAboutDisks(t *testing.T) {
	pod, second := newPod("p", "a"), newPod("q", "b", later)
	shared := func(f *facts) { f.exclusive = false }
	after := func(d time.Duration) func(*facts) { return func(f *facts) { f.now = began.Add(d) } }
	for _, test := range []struct {
		name   string
		places []place
		want   string
		change []func(*facts)
	}{
		{"a pod comes", []place{there("a", newNode("a"), pod)}, "report a", nil},
		{"the node is gone", []place{there("a", pod)}, "", nil},
		{"the node attaches by itself", []place{there("a", newNode("a", unmanaged), pod)}, "", nil},
		{"reported", []place{there("a", newNode("a", reporting, using), pod, true)}, "", nil},
		{"two nodes, one volume", []place{there("a", newNode("a"), newPod("p", "a", later)), there("b", newNode("b"), newPod("q", "b"))}, "report b, tell p", nil},
		{"two nodes, a volume for many", []place{there("a", newNode("a"), pod), there("b", newNode("b"), second)}, "report a, report b", []func(*facts){shared}},
		{"another has it", []place{there("a", newNode("a", reporting), pod, true), there("b", newNode("b"), second)}, "tell q", nil},
		{"another lets go", []place{there("a", newNode("a", reporting), true), there("b", newNode("b"), second)}, "detach a", nil},
		{"another wants it, or it was taken by force", []place{there("a", newNode("a", using, silent)), there("b", newNode("b"), second)}, "report b", nil},
		{"both want it", []place{there("a", newNode("a", using), pod), there("b", newNode("b", using), second)}, "report a, tell q", nil},
		{"another node is gone, which had it", []place{there("a", true, time.Duration(0)), there("b", newNode("b"), second)}, "tell q, again in 6m0s", nil},
		{"another node is gone for long", []place{there("a", true, time.Duration(0)), there("b", newNode("b"), second)}, "detach(timeout) a", []func(*facts){after(6 * time.Minute)}},
		{"not needed", []place{there("a", newNode("a", reporting), true)}, "detach a", nil},
		{"not needed and in use", []place{there("a", newNode("a", reporting, using), true)}, "", nil},
		{"in use, silent for long", []place{there("a", newNode("a", reporting, using, silent), true, time.Duration(0))}, "detach(timeout) a", []func(*facts){after(7 * time.Minute)}},
		{"in use, the node is out of service", []place{there("a", newNode("a", reporting, using, silent, lost), true)}, "detach(out-of-service) a", nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			f := &facts{name: name, direct: true, attachable: true, exclusive: true, places: test.places, now: began}
			for _, change := range test.change {
				change(f)
			}
			if got := decide(f).text(); got != test.want {
				t.Errorf("plan %q, want %q", got, test.want)
			}
		})
	}
}

func TestWords(t *testing.T) {
	local, foreign := newPod("p", "a"), newPod("r", "a", elsewhere)
	waiting := there("b", newNode("b"), newPod("q", "b"))
	timeless := newAttachment("b")
	for _, test := range []struct {
		want   string
		places []place
	}{
		{`Multi-Attach error for volume "pv" Volume is already used by pod(s) p`, []place{there("a", newNode("a", reporting), newAttachment("a", isAttached), local), waiting}},
		{`Multi-Attach error for volume "pv" Volume is already used by pod(s) p and 1 pod(s) in different namespaces`, []place{there("a", newNode("a", reporting), newAttachment("a", isAttached), local, foreign), waiting}},
		{`Multi-Attach error for volume "pv" Volume is already used by 1 pod(s) in different namespaces`, []place{there("a", newNode("a", reporting), newAttachment("a", isAttached), foreign), waiting}},
		{`Multi-Attach error for volume "pv" Volume is already exclusively attached to one node and can't be attached to another`, []place{there("a", newNode("a", using, reporting), newAttachment("a", isAttached)), waiting}},
		{`AttachVolume.Attach failed for volume "pv" : no room`, []place{there("b", newNode("b"), newPod("q", "b"), newAttachment("b", failing))}},
		{`AttachVolume.Attach failed for volume "pv" : volume attachment is being deleted`, []place{there("b", newNode("b"), newPod("q", "b"), newAttachment("b", leaving, failingToLeave))}},
		{`AttachVolume.Attach failed for volume "pv" : timed out waiting for external-attacher of csi.example.com CSI driver to attach volume h`, []place{there("b", newNode("b"), newPod("q", "b"), timeless)}},
	} {
		p := decide(&facts{name: name, driver: driver, handle: handle, attachable: true, exclusive: true, places: test.places, now: began.Add(3 * time.Minute)})
		if len(p.says) != 1 || p.says[0].message != test.want || p.says[0].pod.Name != "q" {
			t.Errorf("said %+v, want %q", p.says, test.want)
		}
	}
	if got := about("AttachVolume.Attach succeeded", &waiting, ""); got != `AttachVolume.Attach succeeded for volume "pv" ` {
		t.Errorf("%q", got)
	}
}

func TestWhoNeedsVolumes(t *testing.T) {
	running := []v1.ContainerStatus{{State: v1.ContainerState{Terminated: &v1.ContainerStateTerminated{}}}, {State: v1.ContainerState{Running: &v1.ContainerStateRunning{}}}}
	deleted := func(p *v1.Pod) { p.DeletionTimestamp = new(metav1.NewTime(began)) }
	for what, test := range map[string]struct {
		pod  *v1.Pod
		want bool
	}{
		"scheduled":                     {newPod("p", "a"), true},
		"not scheduled":                 {newPod("p", ""), false},
		"failed":                        {newPod("p", "a", func(p *v1.Pod) { p.Status.Phase, p.Status.ContainerStatuses = v1.PodFailed, running }), false},
		"succeeded":                     {newPod("p", "a", func(p *v1.Pod) { p.Status.Phase = v1.PodSucceeded }), false},
		"deleted before it started":     {newPod("p", "a", deleted), false},
		"deleted, and running":          {newPod("p", "a", deleted, func(p *v1.Pod) { p.Status.ContainerStatuses = running }), true},
		"deleted, with a running init":  {newPod("p", "a", deleted, func(p *v1.Pod) { p.Status.InitContainerStatuses = running }), true},
		"deleted, somebody looks at it": {newPod("p", "a", deleted, func(p *v1.Pod) { p.Status.EphemeralContainerStatuses = running }), true},
		"deleted, and stopped":          {newPod("p", "a", deleted, func(p *v1.Pod) { p.Status.ContainerStatuses = running[:1] }), false},
	} {
		if needs(test.pod) != test.want {
			t.Errorf("%s: %v", what, !test.want)
		}
	}
}

// What a kubelet or an administrator has done between the decision and the step counts.
func TestWhatIsSafe(t *testing.T) {
	f := &facts{name: name}
	for _, test := range []struct {
		node  *v1.Node
		force string
		want  bool
	}{
		{newNode("a"), "", true},
		{newNode("a", using), "", false},
		{newNode("a", made), "", false},
		{nil, "", false},
		{nil, timedOut, true},
		{newNode("a", using, silent), timedOut, true},
		{newNode("a", using), timedOut, false},
		{newNode("a", using, silent, lost), outOfService, true},
		{newNode("a", using, silent), outOfService, false},
	} {
		if f.safe(test.node, test.force) != test.want {
			t.Errorf("%+v, %q: %v", test.node, test.force, !test.want)
		}
	}
}

func TestNamesOfVolumes(t *testing.T) {
	disk := func(source v1.PersistentVolumeSource) *v1.PersistentVolume {
		return newVolume(func(pv *v1.PersistentVolume) { pv.Spec.PersistentVolumeSource = source })
	}
	for want, pv := range map[string]*v1.PersistentVolume{
		"kubernetes.io/csi/csi.example.com^h":               newVolume(),
		"kubernetes.io/csi/ebs.csi.aws.com^vol-1":           disk(v1.PersistentVolumeSource{AWSElasticBlockStore: &v1.AWSElasticBlockStoreVolumeSource{VolumeID: "vol-1"}}),
		"kubernetes.io/iscsi/p:iqn.2001-04.com.example:d:0": disk(v1.PersistentVolumeSource{ISCSI: &v1.ISCSIPersistentVolumeSource{TargetPortal: "p", IQN: "iqn.2001-04.com.example:d"}}),
		"": disk(v1.PersistentVolumeSource{NFS: &v1.NFSVolumeSource{Server: "s", Path: "/"}}),
	} {
		if got := nameOf(pv); string(got) != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
	n := newNode("a", reporting, using, func(n *v1.Node) {
		n.Status.VolumesInUse = append(n.Status.VolumesInUse, "kubernetes.io/iscsi/x", "kubernetes.io/csi/other^1", "kubernetes.io/rbd/x")
	})
	if got := mentioned(n); !slices.Equal(got, []string{string(name), "kubernetes.io/iscsi/x", "kubernetes.io/csi/other^1"}) {
		t.Errorf("mentioned: %q", got)
	}
}
