package printers

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"wherry.dev/internal/apiserver/registry"
)

var now = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// podWith returns a pod with n containers and the given changes.
func podWith(n int, changes ...func(*corev1.Pod)) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", CreationTimestamp: metav1.NewTime(now.Add(-time.Minute))}}
	p.Spec.Containers = make([]corev1.Container, n)
	for _, c := range changes {
		c(p)
	}
	return p
}

func phase(ph corev1.PodPhase) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Status.Phase = ph }
}

func status(s ...corev1.ContainerStatus) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Status.ContainerStatuses = s }
}

func initStatus(s ...corev1.ContainerStatus) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Status.InitContainerStatuses = s
		p.Spec.InitContainers = make([]corev1.Container, len(s))
	}
}

func is(kind corev1.PodConditionType) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Status.Conditions = append(p.Status.Conditions, corev1.PodCondition{Type: kind, Status: corev1.ConditionTrue})
	}
}

func sidecar(p *corev1.Pod) {
	p.Spec.InitContainers[0] = corev1.Container{Name: "s", RestartPolicy: new(corev1.ContainerRestartPolicyAlways)}
	p.Status.InitContainerStatuses[0].Name = "s"
}

func running(ready bool) corev1.ContainerStatus {
	return corev1.ContainerStatus{Ready: ready, State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}
}

func waiting(reason string) corev1.ContainerStatus {
	return corev1.ContainerStatus{State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason}}}
}

func terminated(code, signal int32, reason string) corev1.ContainerStatus {
	return corev1.ContainerStatus{State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: code, Signal: signal, Reason: reason}}}
}

func restarted(s corev1.ContainerStatus, n int32, ago time.Duration) corev1.ContainerStatus {
	s.RestartCount = n
	s.LastTerminationState.Terminated = &corev1.ContainerStateTerminated{FinishedAt: metav1.NewTime(now.Add(-ago))}
	return s
}

func started(s corev1.ContainerStatus) corev1.ContainerStatus {
	s.Started = new(true)
	return s
}

func TestPodStatusColumn(t *testing.T) {
	for name, tc := range map[string]struct {
		pod                     *corev1.Pod
		ready, status, restarts string
	}{
		"pending": {podWith(1, phase("Pending")), "0/1", "Pending", "0"},
		"gated": {podWith(1, phase("Pending"), func(p *corev1.Pod) {
			p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Reason: "SchedulingGated"}}
		}), "0/1", "SchedulingGated", "0"},
		"creating":            {podWith(1, phase("Pending"), status(waiting("ContainerCreating"))), "0/1", "ContainerCreating", "0"},
		"running":             {podWith(2, phase("Running"), status(running(true), running(true))), "2/2", "Running", "0"},
		"one not ready":       {podWith(2, phase("Running"), status(running(true), running(false))), "1/2", "Running", "0"},
		"crash loop":          {podWith(1, phase("Running"), status(restarted(waiting("CrashLoopBackOff"), 3, 90*time.Second))), "0/1", "CrashLoopBackOff", "3 (90s ago)"},
		"first one wins":      {podWith(2, phase("Running"), status(waiting("ErrImagePull"), waiting("CrashLoopBackOff"))), "0/2", "ErrImagePull", "0"},
		"completed":           {podWith(1, phase("Succeeded"), status(terminated(0, 0, "Completed"))), "0/1", "Completed", "0"},
		"error":               {podWith(1, phase("Failed"), status(terminated(1, 0, "Error"))), "0/1", "Error", "0"},
		"exit code":           {podWith(1, phase("Failed"), status(terminated(3, 0, ""))), "0/1", "ExitCode:3", "0"},
		"signal":              {podWith(1, phase("Failed"), status(terminated(137, 9, ""))), "0/1", "Signal:9", "0"},
		"one done, one ready": {podWith(2, phase("Running"), is(corev1.PodReady), status(terminated(0, 0, "Completed"), running(true))), "1/2", "Running", "0"},
		"one done, not ready": {podWith(2, phase("Running"), status(terminated(0, 0, "Completed"), running(true))), "1/2", "NotReady", "0"},
		"one done, one failed": {
			podWith(2, phase("Failed"), status(terminated(0, 0, "Completed"), terminated(1, 0, "Error"))), "0/2", "Error", "0",
		},
		"evicted":           {podWith(1, phase("Failed"), func(p *corev1.Pod) { p.Status.Reason = "Evicted" }), "0/1", "Evicted", "0"},
		"first init":        {podWith(1, phase("Pending"), initStatus(running(false), waiting("PodInitializing"))), "0/1", "Init:0/2", "0"},
		"second init":       {podWith(1, phase("Pending"), initStatus(terminated(0, 0, "Completed"), running(false))), "0/1", "Init:1/2", "0"},
		"init fails":        {podWith(1, phase("Pending"), initStatus(terminated(1, 0, "Error"))), "0/1", "Init:Error", "0"},
		"init exit code":    {podWith(1, phase("Pending"), initStatus(terminated(2, 0, ""))), "0/1", "Init:ExitCode:2", "0"},
		"init signal":       {podWith(1, phase("Pending"), initStatus(terminated(2, 9, ""))), "0/1", "Init:Signal:9", "0"},
		"init crash loop":   {podWith(1, phase("Pending"), initStatus(restarted(waiting("CrashLoopBackOff"), 2, time.Minute))), "0/1", "Init:CrashLoopBackOff", "2 (60s ago)"},
		"init restarts end": {podWith(1, phase("Running"), initStatus(restarted(terminated(0, 0, "Completed"), 2, time.Minute)), status(running(true))), "1/1", "Running", "0"},
		"sidecar counts":    {podWith(1, phase("Running"), initStatus(started(running(true))), sidecar, status(running(true))), "2/2", "Running", "0"},
		"sidecar restarts":  {podWith(1, phase("Running"), initStatus(restarted(started(running(true)), 1, time.Minute)), sidecar, status(running(true))), "2/2", "Running", "1 (60s ago)"},
		"terminating":       {podWith(1, phase("Running"), func(p *corev1.Pod) { p.DeletionTimestamp = &metav1.Time{} }, status(running(true))), "1/1", "Terminating", "0"},
		"node lost":         {podWith(1, phase("Running"), func(p *corev1.Pod) { p.DeletionTimestamp, p.Status.Reason = &metav1.Time{}, "NodeLost" }), "0/1", "Unknown", "0"},
		"ended and deleted": {podWith(1, phase("Succeeded"), func(p *corev1.Pod) { p.DeletionTimestamp = &metav1.Time{} }, status(terminated(0, 0, "Completed"))), "0/1", "Completed", "0"},
	} {
		t.Run(name, func(t *testing.T) {
			cells := Pods.Cells(tc.pod, now)
			if cells[1] != tc.ready || cells[2] != tc.status || cells[3] != tc.restarts {
				t.Errorf("ready %v, status %v, restarts %v; want %v, %v, %v", cells[1], cells[2], cells[3], tc.ready, tc.status, tc.restarts)
			}
			if cells[4] != "60s" {
				t.Errorf("age %v", cells[4])
			}
		})
	}
}

func TestPodWideColumns(t *testing.T) {
	p := podWith(1, is("example.com/gate"), func(p *corev1.Pod) {
		p.Spec.NodeName = "n1"
		p.Status.PodIPs = []corev1.PodIP{{IP: "10.0.0.7"}}
		p.Spec.ReadinessGates = []corev1.PodReadinessGate{{ConditionType: "example.com/gate"}, {ConditionType: "example.com/other"}}
	})
	cells := Pods.Cells(p, now)
	want := []any{"10.0.0.7", "n1", "<none>", "1/2"}
	for i, w := range want {
		if cells[5+i] != w {
			t.Errorf("%s: %v, want %v", Pods.Columns[5+i].Name, cells[5+i], w)
		}
	}
}

func TestNodeColumns(t *testing.T) {
	n := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: "n", Labels: map[string]string{"node-role.kubernetes.io/control-plane": "", "kubernetes.io/role": "worker"}},
		Spec:       corev1.NodeSpec{Unschedulable: true},
		Status: corev1.NodeStatus{
			Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}},
			Addresses:  []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "1.2.3.4"}},
			NodeInfo:   corev1.NodeSystemInfo{KubeletVersion: "v1.37.2", KernelVersion: "6.1", Architecture: "amd64"},
		},
	}
	want := []any{"n", "Ready,SchedulingDisabled", "control-plane,worker", "<unknown>", "v1.37.2", "1.2.3.4", "<none>", "<unknown>", "6.1 (amd64)", "<unknown>"}
	equal(t, Nodes.Cells(n, now), want)
	n.Status.Conditions[0].Status = corev1.ConditionUnknown
	if got := Nodes.Cells(n, now)[1]; got != "NotReady,SchedulingDisabled" {
		t.Errorf("status %v", got)
	}
}

func TestEventAndServiceColumns(t *testing.T) {
	e := &corev1.Event{
		ObjectMeta: metav1.ObjectMeta{Name: "e"}, Type: "Normal", Reason: "Pulled", Message: "done \n",
		EventTime:           metav1.NewMicroTime(now.Add(-time.Hour)),
		InvolvedObject:      corev1.ObjectReference{Kind: "Pod", Name: "p"},
		ReportingController: "kubelet", ReportingInstance: "n1",
		Series: &corev1.EventSeries{Count: 4, LastObservedTime: metav1.NewMicroTime(now.Add(-time.Minute))},
	}
	equal(t, Events.Cells(e, now), []any{"60s", "Normal", "Pulled", "pod/p", "", "kubelet, n1", "done", "60m", int64(4), "e"})
	s := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "s"},
		Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeLoadBalancer, ClusterIPs: []string{"10.96.0.9"}, Selector: map[string]string{"b": "2", "a": "1"},
			Ports: []corev1.ServicePort{{Port: 80, NodePort: 30080, Protocol: "TCP"}, {Port: 53, Protocol: "UDP"}},
		},
	}
	equal(t, Services.Cells(s, now), []any{"s", "LoadBalancer", "10.96.0.9", "<pending>", "80:30080/TCP,53/UDP", "<unknown>", "a=1,b=2"})
}

func equal(t *testing.T, got, want []any) {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("%d cells, want %d", len(got), len(want))
	}
	for i := range want {
		if got[i] != want[i] {
			t.Errorf("cell %d: %v, want %v", i, got[i], want[i])
		}
	}
}

func TestEveryTableHasACellForEachColumn(t *testing.T) {
	check := func(name string, columns, cells int) {
		if columns != cells {
			t.Errorf("%s: %d columns, %d cells", name, columns, cells)
		}
	}
	checkTable(check, "pods", Pods, podWith(1))
	checkTable(check, "persistentvolumes", PersistentVolumes, &corev1.PersistentVolume{})
	checkTable(check, "persistentvolumeclaims", PersistentVolumeClaims, &corev1.PersistentVolumeClaim{})
	checkTable(check, "resourcequotas", ResourceQuotas, &corev1.ResourceQuota{})
	checkTable(check, "storageclasses", StorageClasses, &storagev1.StorageClass{})
	checkTable(check, "volumeattachments", VolumeAttachments, &storagev1.VolumeAttachment{})
	checkTable(check, "csinodes", CSINodes, &storagev1.CSINode{})
	checkTable(check, "csidrivers", CSIDrivers, &storagev1.CSIDriver{})
	checkTable(check, "secrets", Secrets, &corev1.Secret{})
}

func checkTable[T registry.Object](check func(string, int, int), name string, table registry.Table[T], obj T) {
	check(name, len(table.Columns), len(table.Cells(obj, now)))
}
