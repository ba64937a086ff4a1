package defaults

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/yaml"
)

// decode reads YAML strictly into a new T.
func decode[T any](t *testing.T, text string) *T {
	t.Helper()
	obj := new(T)
	if err := yaml.UnmarshalStrict([]byte(text), obj); err != nil {
		t.Fatal(err)
	}
	return obj
}

// same compares the objects in their serialized form.
func same(t *testing.T, got, want any) {
	t.Helper()
	var text [2]string
	for i, o := range []any{got, want} {
		out, err := yaml.Marshal(o)
		if err != nil {
			t.Fatal(err)
		}
		text[i] = string(out)
	}
	if d := cmp.Diff(text[1], text[0]); d != "" {
		t.Errorf("difference (-want +got):\n%s", d)
	}
}

func TestPodDefaults(t *testing.T) {
	pod := decode[corev1.Pod](t, `
spec:
  serviceAccount: robot
  hostNetwork: true
  initContainers: [{name: i, image: "busybox:1.36"}]
  containers:
  - name: c
    image: "host:5000/a/b"
    ports: [{containerPort: 80}]
    env: [{name: N, valueFrom: {fieldRef: {fieldPath: metadata.name}}}]
    resources: {limits: {cpu: "1", memory: 1.5m}, requests: {cpu: 100m}}
    livenessProbe: {httpGet: {port: 80}}
    readinessProbe: {grpc: {port: 80}}
    lifecycle: {preStop: {httpGet: {port: 80, scheme: HTTPS}}}
  volumes:
  - {name: empty}
  - {name: host, hostPath: {path: /x}}
  - {name: secret, secret: {secretName: s}}
  - {name: image, image: {reference: "a@sha256:0000"}}
  - name: all
    projected:
      sources: [{serviceAccountToken: {path: t}}, {downwardAPI: {items: [{path: p, fieldRef: {fieldPath: metadata.uid}}]}}]
`)
	Pod(pod)
	want := decode[corev1.Pod](t, `
spec:
  dnsPolicy: ClusterFirst
  enableServiceLinks: true
  hostNetwork: true
  restartPolicy: Always
  schedulerName: default-scheduler
  securityContext: {}
  serviceAccount: robot
  serviceAccountName: robot
  terminationGracePeriodSeconds: 30
  initContainers:
  - {name: i, image: "busybox:1.36", imagePullPolicy: IfNotPresent, terminationMessagePath: /dev/termination-log, terminationMessagePolicy: File}
  containers:
  - name: c
    image: "host:5000/a/b"
    imagePullPolicy: Always
    terminationMessagePath: /dev/termination-log
    terminationMessagePolicy: File
    ports: [{containerPort: 80, hostPort: 80, protocol: TCP}]
    env: [{name: N, valueFrom: {fieldRef: {apiVersion: v1, fieldPath: metadata.name}}}]
    resources: {limits: {cpu: "1", memory: 2m}, requests: {cpu: 100m, memory: 2m}}
    livenessProbe: {httpGet: {port: 80, path: /, scheme: HTTP}, timeoutSeconds: 1, periodSeconds: 10, successThreshold: 1, failureThreshold: 3}
    readinessProbe: {grpc: {port: 80, service: ""}, timeoutSeconds: 1, periodSeconds: 10, successThreshold: 1, failureThreshold: 3}
    lifecycle: {preStop: {httpGet: {port: 80, path: /, scheme: HTTPS}}}
  volumes:
  - {name: empty, emptyDir: {}}
  - {name: host, hostPath: {path: /x, type: ""}}
  - {name: secret, secret: {secretName: s, defaultMode: 420}}
  - {name: image, image: {reference: "a@sha256:0000", pullPolicy: IfNotPresent}}
  - name: all
    projected:
      defaultMode: 420
      sources:
      - {serviceAccountToken: {path: t, expirationSeconds: 3600}}
      - {downwardAPI: {items: [{path: p, fieldRef: {apiVersion: v1, fieldPath: metadata.uid}}]}}
`)
	same(t, pod, want)
	again := pod.DeepCopy()
	Pod(again)
	same(t, again, pod)
}

func TestPodLevelResourcesComeFromTheContainers(t *testing.T) {
	pod := decode[corev1.Pod](t, `
spec:
  resources: {limits: {memory: 1Gi}}
  containers:
  - {name: a, image: x, resources: {requests: {cpu: 100m, memory: 10Mi}}}
  - {name: b, image: x, resources: {requests: {cpu: 100m}}}
`)
	Pod(pod)
	PodResources(pod)
	got := pod.Spec.Resources.Requests
	if cpu, memory := got.Cpu().String(), got.Memory().String(); cpu != "200m" || memory != "10Mi" {
		t.Errorf("requests of the pod: cpu %s, memory %s; want 200m and 10Mi", cpu, memory)
	}
}

func TestOtherDefaults(t *testing.T) {
	tests := []struct {
		name      string
		got, want func(t *testing.T) any
	}{
		{"service", func(t *testing.T) any {
			s := decode[corev1.Service](t, `spec: {type: NodePort, ports: [{port: 80}, {port: 81, targetPort: web}]}`)
			Service(s)
			return s
		}, func(t *testing.T) any {
			return decode[corev1.Service](t, `
spec:
  type: NodePort
  sessionAffinity: None
  internalTrafficPolicy: Cluster
  externalTrafficPolicy: Cluster
  ports: [{port: 80, targetPort: 80, protocol: TCP}, {port: 81, targetPort: web, protocol: TCP}]`)
		}},
		{"affine service", func(t *testing.T) any {
			s := decode[corev1.Service](t, `spec: {sessionAffinity: ClientIP, ports: [{port: 80, targetPort: 8080, protocol: UDP}]}`)
			Service(s)
			return s
		}, func(t *testing.T) any {
			return decode[corev1.Service](t, `
spec:
  type: ClusterIP
  sessionAffinity: ClientIP
  sessionAffinityConfig: {clientIP: {timeoutSeconds: 10800}}
  internalTrafficPolicy: Cluster
  ports: [{port: 80, targetPort: 8080, protocol: UDP}]`)
		}},
		{"limit range", func(t *testing.T) any {
			l := decode[corev1.LimitRange](t, `spec: {limits: [{type: Container, max: {cpu: "2"}, min: {memory: 1Mi}}, {type: Pod, max: {cpu: "3"}}]}`)
			LimitRange(l)
			return l
		}, func(t *testing.T) any {
			return decode[corev1.LimitRange](t, `
spec:
  limits:
  - {type: Container, max: {cpu: "2"}, min: {memory: 1Mi}, default: {cpu: "2"}, defaultRequest: {cpu: "2", memory: 1Mi}}
  - {type: Pod, max: {cpu: "3"}}`)
		}},
		{"node", func(t *testing.T) any {
			n := decode[corev1.Node](t, `{spec: {podCIDR: 10.0.0.0/24}, status: {capacity: {cpu: "2"}}}`)
			Node(n)
			return n
		}, func(t *testing.T) any {
			return decode[corev1.Node](t, `{spec: {podCIDR: 10.0.0.0/24, podCIDRs: [10.0.0.0/24]}, status: {capacity: {cpu: "2"}, allocatable: {cpu: "2"}}}`)
		}},
		{"claim", func(t *testing.T) any {
			c := decode[corev1.PersistentVolumeClaim](t, `spec: {accessModes: [ReadWriteOnce]}`)
			PersistentVolumeClaim(c)
			return c
		}, func(t *testing.T) any {
			return decode[corev1.PersistentVolumeClaim](t, `{spec: {accessModes: [ReadWriteOnce], volumeMode: Filesystem}, status: {phase: Pending}}`)
		}},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) { same(t, tc.got(t), tc.want(t)) })
	}
}

func TestListsAreDefaultedToo(t *testing.T) {
	s := runtime.NewScheme()
	if err := corev1.AddToScheme(s); err != nil {
		t.Fatal(err)
	}
	Register(s)
	list := &corev1.PodList{Items: make([]corev1.Pod, 2)}
	s.Default(list)
	if got := list.Items[1].Spec.RestartPolicy; got != corev1.RestartPolicyAlways {
		t.Errorf("restartPolicy of a pod in a list: %q", got)
	}
}

func TestImageTag(t *testing.T) {
	for image, want := range map[string]string{
		"busybox":                             "latest",
		"busybox:latest":                      "latest",
		"busybox:1":                           "1",
		"host:5000/busybox":                   "latest",
		"host:5000/busybox:1":                 "1",
		"busybox@sha256:abcd":                 "",
		"b@sha256:" + strings.Repeat("a", 64): "",
		"b:latest@sha256:" + strings.Repeat("a", 64): "latest",
		"-a":              "",
		"Not A Reference": "",
		"":                "",
	} {
		if got := imageTag(image); got != want {
			t.Errorf("imageTag(%q) = %q, want %q", image, got, want)
		}
	}
}

func FuzzImageTag(f *testing.F) {
	for _, s := range []string{"a", "a:b", "h:1/a:b@sha256:c", ":", "@", "/:"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, image string) {
		tag := imageTag(image)
		if tag != "" && tag != "latest" && !strings.Contains(image, ":"+tag) {
			t.Errorf("imageTag(%q) = %q", image, tag)
		}
		if strings.ContainsAny(tag, "/@") {
			t.Errorf("imageTag(%q) = %q", image, tag)
		}
	})
}

// stringData used to be stored as it came, and pods never saw it.
func TestStringDataOfSecretsGoesIntoData(t *testing.T) {
	s := &corev1.Secret{Data: map[string][]byte{"a": []byte("1"), "b": []byte("2")}, StringData: map[string]string{"b": "3", "c": "4"}}
	Secret(s)
	if len(s.Data) != 3 || string(s.Data["b"]) != "3" || string(s.Data["c"]) != "4" || s.StringData != nil {
		t.Errorf("got %v, %v", s.Data, s.StringData)
	}
}

func TestNegativeGracePeriodIsOneSecond(t *testing.T) {
	p := &corev1.Pod{Spec: corev1.PodSpec{TerminationGracePeriodSeconds: new(int64(-5))}}
	Pod(p)
	if got := *p.Spec.TerminationGracePeriodSeconds; got != 1 {
		t.Errorf("%d", got)
	}
	template := &corev1.PodSpec{TerminationGracePeriodSeconds: new(int64(-5))}
	PodSpec(template)
	if got := *template.TerminationGracePeriodSeconds; got != -5 {
		t.Errorf("of a template: %d", got)
	}
}

// A template with only the old name of the field ran its pods under the account "default".
func TestServiceAccountOfATemplateHasTwoNames(t *testing.T) {
	d := &appsv1.Deployment{Spec: appsv1.DeploymentSpec{Template: corev1.PodTemplateSpec{Spec: corev1.PodSpec{DeprecatedServiceAccount: "robot"}}}}
	Deployment(d)
	if got := d.Spec.Template.Spec; got.ServiceAccountName != "robot" || got.DeprecatedServiceAccount != "robot" {
		t.Errorf("serviceAccountName %q, serviceAccount %q", got.ServiceAccountName, got.DeprecatedServiceAccount)
	}
	spec := corev1.PodSpec{ServiceAccountName: "new", DeprecatedServiceAccount: "old"}
	PodSpec(&spec)
	if spec.ServiceAccountName != "new" || spec.DeprecatedServiceAccount != "new" {
		t.Errorf("serviceAccountName %q, serviceAccount %q", spec.ServiceAccountName, spec.DeprecatedServiceAccount)
	}
}
