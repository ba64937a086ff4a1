package e2e

// shopChart is a chart of the usual shape: labels from a helper, a checksum that rolls the pods when the
// settings change, hooks, a test, and one of each kind that charts have.
var shopChart = map[string]string{
	"Chart.yaml": `{apiVersion: v2, name: shop, version: 1.0.0, appVersion: "1", kubeVersion: ">=1.37.0-0"}`,
	"values.yaml": `
image: docker.io/library/busybox:1.36
greeting: hello
hook: "true"
`,
	"templates/NOTES.txt": `The shop says {{ .Values.greeting }}.`,
	"templates/_labels.tpl": `
{{- define "shop.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}
{{- define "shop.labels" -}}
{{ include "shop.selector" . }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end -}}
{{- define "shop.metadata" -}}
metadata:
  name: {{ .Release.Name }}
  labels: {{- include "shop.labels" . | nindent 4 }}
{{- end -}}
`,
	"templates/settings.yaml": `
apiVersion: v1
kind: ConfigMap
{{ include "shop.metadata" . }}
data:
  index.html: "{{ .Values.greeting }}, says release {{ .Release.Revision }}\n"
---
apiVersion: v1
kind: Secret
{{ include "shop.metadata" . }}
stringData: {password: {{ .Values.greeting | b64enc | quote }}}
`,
	"templates/account.yaml": `
apiVersion: v1
kind: ServiceAccount
{{ include "shop.metadata" . }}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
{{ include "shop.metadata" . }}
rules:
- {apiGroups: [""], resources: [configmaps], resourceNames: [{{ .Release.Name }}], verbs: [get]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
{{ include "shop.metadata" . }}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: {{ .Release.Name }}}
subjects:
- {kind: ServiceAccount, name: {{ .Release.Name }}, namespace: {{ .Release.Namespace }}}
`,
	"templates/deployment.yaml": `
apiVersion: apps/v1
kind: Deployment
{{ include "shop.metadata" . }}
spec:
  selector:
    matchLabels: {{- include "shop.selector" . | nindent 6 }}
  template:
    metadata:
      labels: {{- include "shop.labels" . | nindent 8 }}
      annotations:
        checksum/settings: {{ include (print $.Template.BasePath "/settings.yaml") . | sha256sum }}
    spec:
      serviceAccountName: {{ .Release.Name }}
      terminationGracePeriodSeconds: 2
      containers:
      - name: web
        image: {{ .Values.image }}
        command: [httpd, -f, -p, "8080", -h, /www]
        env:
        - {name: PASSWORD, valueFrom: {secretKeyRef: {name: {{ .Release.Name }}, key: password}}}
        ports:
        - {name: http, containerPort: 8080}
        readinessProbe: {httpGet: {path: /, port: http}, periodSeconds: 1}
        resources: {requests: {cpu: 50m, memory: 8Mi}, limits: {memory: 64Mi}}
        volumeMounts:
        - {name: settings, mountPath: /www}
      volumes:
      - {name: settings, configMap: {name: {{ .Release.Name }}}}
`,
	"templates/service.yaml": `
apiVersion: v1
kind: Service
{{ include "shop.metadata" . }}
spec:
  selector: {{- include "shop.selector" . | nindent 4 }}
  ports:
  - {name: http, port: 80, targetPort: http}
---
apiVersion: networking.k8s.io/v1
kind: Ingress
{{ include "shop.metadata" . }}
spec:
  rules:
  - host: shop.example.com
    http:
      paths:
      - {path: /, pathType: Prefix, backend: {service: {name: {{ .Release.Name }}, port: {name: http}}}}
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
{{ include "shop.metadata" . }}
spec:
  podSelector:
    matchLabels: {{- include "shop.selector" . | nindent 6 }}
  ingress:
  - from:
    - podSelector: {}
    ports:
    - {port: http}
`,
	"templates/scaling.yaml": `
apiVersion: autoscaling/v2
kind: HorizontalPodAutoscaler
{{ include "shop.metadata" . }}
spec:
  scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: {{ .Release.Name }}}
  minReplicas: 2
  maxReplicas: 2
  metrics:
  - {type: Resource, resource: {name: cpu, target: {type: Utilization, averageUtilization: 80}}}
---
apiVersion: policy/v1
kind: PodDisruptionBudget
{{ include "shop.metadata" . }}
spec:
  maxUnavailable: 1
  selector:
    matchLabels: {{- include "shop.selector" . | nindent 6 }}
`,
	"templates/store.yaml": `
apiVersion: v1
kind: Service
metadata:
  name: {{ .Release.Name }}-store
  labels: {{- include "shop.labels" . | nindent 4 }}
spec:
  clusterIP: None
  selector: {app.kubernetes.io/name: store}
---
apiVersion: apps/v1
kind: StatefulSet
metadata:
  name: {{ .Release.Name }}-store
  labels: {{- include "shop.labels" . | nindent 4 }}
spec:
  serviceName: {{ .Release.Name }}-store
  replicas: 2
  selector:
    matchLabels: {app.kubernetes.io/name: store}
  template:
    metadata:
      labels: {app.kubernetes.io/name: store}
    spec:
      terminationGracePeriodSeconds: 2
      containers:
      - name: store
        image: {{ .Values.image }}
        command: [httpd, -f, -p, "8080", -h, /data]
        volumeMounts:
        - {name: data, mountPath: /data}
      volumes:
      - {name: data, emptyDir: {}}
---
apiVersion: batch/v1
kind: CronJob
{{ include "shop.metadata" . }}
spec:
  schedule: "0 0 29 2 *"
  jobTemplate:
    spec:
      template:
        spec:
          restartPolicy: Never
          containers:
          - {name: tidy, image: {{ .Values.image }}, command: [echo, tidy]}
`,
	"templates/hook.yaml": `
apiVersion: batch/v1
kind: Job
metadata:
  name: {{ .Release.Name }}-hook
  labels: {app.kubernetes.io/instance: {{ .Release.Name }}}
  annotations:
    helm.sh/hook: pre-install,post-upgrade
    helm.sh/hook-delete-policy: before-hook-creation
spec:
  backoffLimit: 0
  template:
    spec:
      restartPolicy: Never
      containers:
      - name: hook
        image: {{ .Values.image }}
        command: [sh, -c, 'echo "hook of release {{ .Release.Revision }}"; {{ .Values.hook }}']
`,
	"templates/tests/answers.yaml": `
apiVersion: v1
kind: Pod
metadata:
  name: {{ .Release.Name }}-test
  annotations:
    helm.sh/hook: test
    helm.sh/hook-delete-policy: before-hook-creation,hook-succeeded
spec:
  restartPolicy: Never
  containers:
  - name: wget
    image: {{ .Values.image }}
    command: [sh, -c, 'wget -qO- http://{{ .Release.Name }} | grep -q "^{{ .Values.greeting }}, says release"']
`,
}
