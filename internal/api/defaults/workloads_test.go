package defaults

import (
	"testing"

	appsv1 "k8s.io/api/apps/v1"
)

// filled is what becomes of a template with one container.
const filled = `
    spec:
      containers: [{name: c, image: "i:1", imagePullPolicy: IfNotPresent, terminationMessagePath: /dev/termination-log, terminationMessagePolicy: File}]
      dnsPolicy: ClusterFirst
      restartPolicy: Always
      schedulerName: default-scheduler
      securityContext: {}
      terminationGracePeriodSeconds: 30
`

// defaulted checks what f makes of an object, and that doing it again changes nothing.
func defaulted[T any](t *testing.T, name string, f func(*T), before, after string) {
	t.Helper()
	t.Run(name, func(t *testing.T) {
		obj, want := decode[T](t, before), decode[T](t, after)
		f(obj)
		same(t, obj, want)
		f(obj)
		same(t, obj, want)
	})
}

func TestWorkloadDefaults(t *testing.T) {
	defaulted[appsv1.ReplicaSet](t, "replica set", ReplicaSet, `spec: {template: {spec: {containers: [{name: c, image: "i:1"}]}}}`, `
spec:
  replicas: 1
  template:`+filled)
	defaulted[appsv1.Deployment](t, "deployment", Deployment, `spec: {template: {spec: {containers: [{name: c, image: "i:1"}]}}}`, `
spec:
  replicas: 1
  strategy: {type: RollingUpdate, rollingUpdate: {maxUnavailable: 25%, maxSurge: 25%}}
  revisionHistoryLimit: 10
  progressDeadlineSeconds: 600
  template:`+filled)
	defaulted[appsv1.Deployment](t, "deployment that recreates", Deployment,
		`spec: {replicas: 0, strategy: {type: Recreate}, revisionHistoryLimit: 0, progressDeadlineSeconds: 7, template: {spec: {containers: [{name: c, image: "i:1"}]}}}`, `
spec:
  replicas: 0
  strategy: {type: Recreate}
  revisionHistoryLimit: 0
  progressDeadlineSeconds: 7
  template:`+filled)
	const rest = `template: {spec: {containers: [{name: c, image: "i:1"}]}}`
	defaulted[appsv1.DaemonSet](t, "daemon set", DaemonSet, `spec: {`+rest+`}`, `
spec:
  updateStrategy: {type: RollingUpdate, rollingUpdate: {maxUnavailable: 1, maxSurge: 0}}
  revisionHistoryLimit: 10
  template:`+filled)
	defaulted[appsv1.DaemonSet](t, "daemon set by hand", DaemonSet, `spec: {updateStrategy: {type: OnDelete}, `+rest+`}`, `
spec:
  updateStrategy: {type: OnDelete}
  revisionHistoryLimit: 10
  template:`+filled)
	defaulted[appsv1.StatefulSet](t, "stateful set", StatefulSet, `spec: {volumeClaimTemplates: [{metadata: {name: v}}], `+rest+`}`, `
spec:
  replicas: 1
  podManagementPolicy: OrderedReady
  updateStrategy: {type: RollingUpdate, rollingUpdate: {partition: 0}}
  persistentVolumeClaimRetentionPolicy: {whenDeleted: Retain, whenScaled: Retain}
  revisionHistoryLimit: 10
  volumeClaimTemplates: [{apiVersion: v1, kind: PersistentVolumeClaim, metadata: {name: v}, spec: {volumeMode: Filesystem}, status: {phase: Pending}}]
  template:`+filled)
	defaulted[appsv1.StatefulSet](t, "stateful set with a strategy", StatefulSet, `spec: {updateStrategy: {type: RollingUpdate}, `+rest+`}`, `
spec:
  replicas: 1
  podManagementPolicy: OrderedReady
  updateStrategy: {type: RollingUpdate}
  persistentVolumeClaimRetentionPolicy: {whenDeleted: Retain, whenScaled: Retain}
  revisionHistoryLimit: 10
  template:`+filled)
}
