package main

import (
	"context"
	"net/http"
	"strings"
)

// calls asks what is not about the kinds one by one: reviews, subresources that do something, health, and paths that
// nobody serves.
func (m *match) calls(ctx context.Context) error {
	for line := range strings.SplitSeq(strings.TrimSpace(callList), "\n") {
		method, rest, _ := strings.Cut(strings.TrimSpace(line), " ")
		path, body, _ := strings.Cut(rest, " ")
		r := request{method: method, path: path, contentType: "application/json"}
		if body != "" {
			r.body = raw(body)
		}
		if method == http.MethodPatch {
			r.contentType = merge
		}
		if _, err := m.both(ctx, "call "+line, r); err != nil {
			return err
		}
	}
	return nil
}

// The objects are those of the seeds.
const callList = `
GET /
GET /api
GET /api/
GET /api/v1/
GET /api/v2
GET /apis/
GET /apis/none
GET /apis/apps/v2
GET /apis/apps/v1/none
GET /api/v1/none
GET /api/v1/namespaces/default/none
GET /api/v1/namespaces/default/none/a
GET /api/v1/namespaces/default
GET /api/v1/namespaces/default/
GET /api/v1/namespaces/none
GET /api/v1/namespaces/none/pods
GET /api/v1/namespaces/none/pods/a
GET /api/v1/namespaces/default/nodes
GET /api/v1/nodes/none/status
GET /api/v1/watch/namespaces/default/configmaps/a?timeoutSeconds=1
GET /api/v1/watch/configmaps?limit=x&timeoutSeconds=1
GET /none
GET /none/of/these
POST /
DELETE /api
GET /healthz
GET /healthz/ping
GET /healthz/etcd
GET /healthz/none
GET /livez
GET /livez/ping
GET /livez?exclude=none
GET /readyz/ping
GET /readyz/etcd
GET /readyz?exclude=etcd
GET /version/
POST /version
GET /openapi/v3/none
GET /openapi/v3/api/v9
GET /openapi
GET /swagger.json
GET /swaggerapi
GET /openid/v1/none
GET /logs
GET /logs/
GET /statusz
GET /flagz
GET /debug/pprof
GET /debug/none
GET /debug/api_priority_and_fairness/
GET /debug/api_priority_and_fairness/none
POST /apis/authorization.k8s.io/v1/subjectaccessreviews {"spec":{}}
POST /apis/authorization.k8s.io/v1/subjectaccessreviews {"spec":{"user":"u"}}
POST /apis/authorization.k8s.io/v1/subjectaccessreviews {"spec":{"user":"u","resourceAttributes":{},"nonResourceAttributes":{}}}
POST /apis/authorization.k8s.io/v1/subjectaccessreviews {"spec":{"user":"u","resourceAttributes":{"verb":"get","resource":"pods"}}}
POST /apis/authorization.k8s.io/v1/subjectaccessreviews {"spec":{"user":"u","groups":["system:masters"],"resourceAttributes":{"verb":"get","resource":"pods"}}}
POST /apis/authorization.k8s.io/v1/subjectaccessreviews {"spec":{"groups":["system:authenticated"],"nonResourceAttributes":{"path":"/version","verb":"get"}}}
POST /apis/authorization.k8s.io/v1/subjectaccessreviews {"spec":{"user":"system:node:a","groups":["system:nodes"],"resourceAttributes":{"verb":"get","resource":"secrets","namespace":"default","name":"a"}}}
POST /apis/authorization.k8s.io/v1/subjectaccessreviews {"spec":{"user":"system:node:a","groups":["system:nodes"],"resourceAttributes":{"verb":"update","resource":"nodes","name":"a","subresource":"status"}}}
POST /apis/authorization.k8s.io/v1/subjectaccessreviews {"spec":{"user":"system:kube-scheduler","resourceAttributes":{"verb":"create","resource":"pods","subresource":"binding"}}}
POST /apis/authorization.k8s.io/v1/subjectaccessreviews {"spec":{"user":"u","resourceAttributes":{"verb":"list","resource":"pods","fieldSelector":{"rawSelector":"a=b"}}}}
POST /apis/authorization.k8s.io/v1/subjectaccessreviews {"spec":{"user":"u","resourceAttributes":{"verb":"list","resource":"pods","fieldSelector":{"rawSelector":"a=b","requirements":[{"key":"a","operator":"In","values":["b"]}]}}}}
POST /apis/authorization.k8s.io/v1/subjectaccessreviews {"spec":{"user":"u","resourceAttributes":{"verb":"list","resource":"pods","labelSelector":{"requirements":[{"key":"","operator":"x"}]}}}}
POST /apis/authorization.k8s.io/v1/subjectaccessreviews {"metadata":{"name":"a"},"spec":{"user":"u","resourceAttributes":{}}}
POST /apis/authorization.k8s.io/v1/subjectaccessreviews {"spec":{"user":7}}
POST /apis/authorization.k8s.io/v1/subjectaccessreviews?dryRun=All {"spec":{"user":"u","resourceAttributes":{"verb":"get"}}}
GET /apis/authorization.k8s.io/v1/subjectaccessreviews
POST /apis/authorization.k8s.io/v1/selfsubjectaccessreviews {"spec":{}}
POST /apis/authorization.k8s.io/v1/selfsubjectaccessreviews {"spec":{"resourceAttributes":{"verb":"*","resource":"*","group":"*"}}}
POST /apis/authorization.k8s.io/v1/namespaces/default/localsubjectaccessreviews {"spec":{"user":"u","resourceAttributes":{"verb":"get","namespace":"other"}}}
POST /apis/authorization.k8s.io/v1/namespaces/default/localsubjectaccessreviews {"metadata":{"namespace":"default"},"spec":{"user":"u","resourceAttributes":{"verb":"get","namespace":"default"}}}
POST /apis/authorization.k8s.io/v1/namespaces/default/localsubjectaccessreviews {"metadata":{"namespace":"other"},"spec":{"user":"u","nonResourceAttributes":{"verb":"get"}}}
POST /apis/authorization.k8s.io/v1/selfsubjectrulesreviews {"spec":{}}
POST /apis/authentication.k8s.io/v1/tokenreviews {"spec":{}}
POST /apis/authentication.k8s.io/v1/tokenreviews {"spec":{"token":"x"}}
POST /apis/authentication.k8s.io/v1/tokenreviews {"spec":{"token":"t0ken"}}
POST /apis/authentication.k8s.io/v1/tokenreviews {"spec":{"token":"t0ken","audiences":["x"]}}
POST /apis/authentication.k8s.io/v1/selfsubjectreviews {}
POST /apis/authentication.k8s.io/v1/selfsubjectreviews {"metadata":{"name":"a"}}
POST /api/v1/namespaces/default/serviceaccounts/a/token {}
POST /api/v1/namespaces/default/serviceaccounts/a/token {"spec":{"expirationSeconds":1}}
POST /api/v1/namespaces/default/serviceaccounts/a/token {"spec":{"expirationSeconds":600,"audiences":["x","y"]}}
POST /api/v1/namespaces/default/serviceaccounts/a/token {"spec":{"expirationSeconds":99999999999}}
POST /api/v1/namespaces/default/serviceaccounts/a/token {"spec":{"boundObjectRef":{}}}
POST /api/v1/namespaces/default/serviceaccounts/a/token {"spec":{"boundObjectRef":{"kind":"Pod","apiVersion":"v1","name":"none"}}}
POST /api/v1/namespaces/default/serviceaccounts/a/token {"spec":{"boundObjectRef":{"kind":"Secret","apiVersion":"v1","name":"a"}}}
POST /api/v1/namespaces/default/serviceaccounts/a/token {"spec":{"boundObjectRef":{"kind":"Secret","apiVersion":"v1","name":"a","uid":"x"}}}
POST /api/v1/namespaces/default/serviceaccounts/a/token {"spec":{"boundObjectRef":{"kind":"ConfigMap","apiVersion":"v1","name":"a"}}}
POST /api/v1/namespaces/default/serviceaccounts/a/token {"spec":{"boundObjectRef":{"kind":"Node","apiVersion":"v1","name":"a"}}}
POST /api/v1/namespaces/default/serviceaccounts/a/token {"metadata":{"name":"b"}}
POST /api/v1/namespaces/default/serviceaccounts/a/token {"metadata":{"namespace":"b"}}
POST /api/v1/namespaces/default/serviceaccounts/none/token {}
POST /api/v1/namespaces/default/serviceaccounts/a/token?dryRun=All {}
POST /api/v1/namespaces/default/pods/a/binding?dryRun=All {"metadata":{"name":"a"},"target":{"kind":"Node","name":"a"}}
POST /api/v1/namespaces/default/pods/a/binding?dryRun=All {"metadata":{"name":"b"},"target":{"kind":"Node","name":"a"}}
POST /api/v1/namespaces/default/pods/a/binding?dryRun=All {"target":{}}
POST /api/v1/namespaces/default/pods/a/binding?dryRun=All {"target":{"kind":"Pod","name":"x"}}
POST /api/v1/namespaces/default/pods/a/binding?dryRun=All {"metadata":{"uid":"x"},"target":{"name":"x"}}
POST /api/v1/namespaces/default/pods/none/binding?dryRun=All {"target":{"name":"x"}}
POST /api/v1/namespaces/default/bindings?dryRun=All {"metadata":{"name":"a"},"target":{"name":"x"}}
POST /api/v1/namespaces/default/bindings?dryRun=All {"target":{"name":"x"}}
POST /api/v1/namespaces/default/pods/a/eviction?dryRun=All {}
POST /api/v1/namespaces/default/pods/a/eviction?dryRun=All {"metadata":{"name":"b"}}
POST /api/v1/namespaces/default/pods/a/eviction?dryRun=All {"apiVersion":"policy/v1","kind":"Eviction","metadata":{"name":"a"}}
POST /api/v1/namespaces/default/pods/a/eviction?dryRun=All {"apiVersion":"policy/v1beta1","kind":"Eviction","metadata":{"name":"a"}}
POST /api/v1/namespaces/default/pods/a/eviction {"apiVersion":"policy/v1","kind":"Eviction","metadata":{"name":"a"},"deleteOptions":{"dryRun":["All"]}}
POST /api/v1/namespaces/default/pods/a/eviction {"apiVersion":"policy/v1","kind":"Eviction","metadata":{"name":"a"},"deleteOptions":{"dryRun":["x"]}}
POST /api/v1/namespaces/default/pods/a/eviction {"apiVersion":"policy/v1","kind":"Eviction","metadata":{"name":"a"},"deleteOptions":{"preconditions":{"uid":"x"}}}
POST /api/v1/namespaces/default/pods/a/eviction {"apiVersion":"policy/v1","kind":"Eviction","metadata":{"name":"a"},"deleteOptions":{"preconditions":{"resourceVersion":"1"}}}
POST /api/v1/namespaces/default/pods/a/eviction {"apiVersion":"policy/v1","kind":"Eviction","metadata":{"name":"a"},"deleteOptions":{"gracePeriodSeconds":-7}}
POST /api/v1/namespaces/default/pods/none/eviction {"apiVersion":"policy/v1","kind":"Eviction","metadata":{"name":"none"}}
PATCH /api/v1/namespaces/default/pods/a/ephemeralcontainers?dryRun=All {"spec":{"ephemeralContainers":[{"name":"e","image":"i"}]}}
PATCH /api/v1/namespaces/default/pods/a/ephemeralcontainers?dryRun=All {"spec":{"ephemeralContainers":[{"name":"e"}]}}
PATCH /api/v1/namespaces/default/pods/a/ephemeralcontainers?dryRun=All {"spec":{"ephemeralContainers":[{"name":"e","image":"i","targetContainerName":"none"}]}}
PATCH /api/v1/namespaces/default/pods/a/ephemeralcontainers?dryRun=All {"spec":{"ephemeralContainers":[{"name":"e","image":"i","ports":[{"containerPort":80}]}]}}
PATCH /api/v1/namespaces/default/pods/a/ephemeralcontainers?dryRun=All {"spec":{"ephemeralContainers":[{"name":"e","image":"i","resources":{"limits":{"cpu":"1"}}}]}}
PATCH /api/v1/namespaces/default/pods/a/ephemeralcontainers?dryRun=All {"spec":{"nodeName":"x"}}
PATCH /api/v1/namespaces/default/pods/a/ephemeralcontainers?dryRun=All {"metadata":{"labels":{"x":"y"}}}
PATCH /api/v1/namespaces/default/pods/a/resize?dryRun=All {"spec":{"nodeName":"x"}}
PATCH /api/v1/namespaces/default/pods/a/resize?dryRun=All {"metadata":{"labels":{"x":"y"}}}
PATCH /api/v1/namespaces/default/pods/a/resize?dryRun=All {"spec":{"containers":[]}}
PATCH /api/v1/namespaces/default/pods/none/resize?dryRun=All {}
GET /api/v1/namespaces/default/pods/a/log
GET /api/v1/namespaces/default/pods/a/log?container=none
GET /api/v1/namespaces/default/pods/a/log?tailLines=-1
GET /api/v1/namespaces/default/pods/a/log?tailLines=x
GET /api/v1/namespaces/default/pods/a/log?sinceSeconds=0
GET /api/v1/namespaces/default/pods/a/log?sinceSeconds=1&sinceTime=2026-01-01T00:00:00Z
GET /api/v1/namespaces/default/pods/a/log?limitBytes=0
GET /api/v1/namespaces/default/pods/a/log?sinceTime=x
GET /api/v1/namespaces/default/pods/a/log?stream=x
GET /api/v1/namespaces/default/pods/a/log?stream=Stdout&tailLines=1
GET /api/v1/namespaces/default/pods/none/log
GET /api/v1/namespaces/default/pods/a/exec
GET /api/v1/namespaces/default/pods/a/exec?command=x
GET /api/v1/namespaces/default/pods/a/exec?command=x&stdout=true
GET /api/v1/namespaces/default/pods/a/exec?command=x&stdout=true&container=none
GET /api/v1/namespaces/default/pods/a/attach
GET /api/v1/namespaces/default/pods/a/attach?stdout=true&container=none
GET /api/v1/namespaces/default/pods/a/portforward
GET /api/v1/namespaces/default/pods/none/portforward
GET /api/v1/namespaces/default/pods/none/proxy/
GET /api/v1/namespaces/default/pods/a/proxy/x
GET /api/v1/namespaces/default/services/none/proxy/
GET /api/v1/namespaces/default/services/a:none/proxy/
GET /api/v1/namespaces/default/services/a:http/proxy/
GET /api/v1/namespaces/default/services/x:a:http/proxy/
GET /api/v1/nodes/none/proxy/
GET /api/v1/nodes/none:x/proxy/
GET /api/v1/componentstatuses/none
PUT /api/v1/namespaces/a/finalize?dryRun=All {"metadata":{"name":"a"},"spec":{"finalizers":["x"]}}
PUT /api/v1/namespaces/a/finalize?dryRun=All {"metadata":{"name":"a"},"spec":{"finalizers":["a.b/c"]}}
PUT /api/v1/namespaces/none/finalize?dryRun=All {"metadata":{"name":"none"}}
PUT /apis/certificates.k8s.io/v1/certificatesigningrequests/a/approval?dryRun=All {"metadata":{"name":"a"}}
PATCH /apis/certificates.k8s.io/v1/certificatesigningrequests/a/approval?dryRun=All {"status":{"conditions":[{"type":"Approved","status":"True"}]}}
PATCH /apis/certificates.k8s.io/v1/certificatesigningrequests/a/approval?dryRun=All {"status":{"conditions":[{"type":"Approved","status":"False"}]}}
PATCH /apis/certificates.k8s.io/v1/certificatesigningrequests/a/approval?dryRun=All {"status":{"conditions":[{"type":"Approved","status":"True"},{"type":"Denied","status":"True"}]}}
PATCH /apis/certificates.k8s.io/v1/certificatesigningrequests/a/approval?dryRun=All {"status":{"certificate":"eA=="}}
PATCH /apis/certificates.k8s.io/v1/certificatesigningrequests/a/status?dryRun=All {"status":{"certificate":"eA=="}}
PATCH /apis/certificates.k8s.io/v1/certificatesigningrequests/a/status?dryRun=All {"status":{"conditions":[{"type":"Failed","status":"True"}]}}
PATCH /apis/apps/v1/namespaces/default/deployments/a/scale?dryRun=All {"spec":{"replicas":-1}}
PATCH /apis/apps/v1/namespaces/default/deployments/none/scale?dryRun=All {"spec":{"replicas":1}}
PUT /apis/apps/v1/namespaces/default/deployments/a/scale?dryRun=All {"spec":{"replicas":1}}
PUT /apis/apps/v1/namespaces/default/deployments/a/scale?dryRun=All {"metadata":{"name":"a"},"spec":{"replicas":1}}
PUT /apis/apps/v1/namespaces/default/deployments/a/scale?dryRun=All {"metadata":{"name":"a","resourceVersion":"1"},"spec":{"replicas":1}}
POST /api/v1/namespaces?dryRun=All {"metadata":{"generateName":"x-"}}
POST /api/v1/namespaces/none/configmaps?dryRun=All {"metadata":{"name":"a"}}
POST /api/v1/namespaces/default/configmaps?dryRun=All {"metadata":{"name":"a","namespace":"other"}}
POST /api/v1/configmaps?dryRun=All {"metadata":{"name":"new","namespace":"default"}}
POST /api/v1/configmaps?dryRun=All {"metadata":{"name":"new"}}
PUT /api/v1/namespaces/default/configmaps/a?dryRun=All {"metadata":{"name":"b"}}
PUT /api/v1/namespaces/default/configmaps/new?dryRun=All {"metadata":{"name":"new"}}
PUT /api/v1/namespaces/default/configmaps/new?dryRun=All {"metadata":{"name":"new","uid":"x"}}
PUT /api/v1/namespaces/default/configmaps/new?dryRun=All {"metadata":{"name":"new","resourceVersion":"1"}}
PUT /apis/coordination.k8s.io/v1/namespaces/default/leases/new?dryRun=All {"metadata":{"name":"new"}}
PUT /api/v1/namespaces/default/pods/new?dryRun=All {"metadata":{"name":"new"}}
DELETE /api/v1/namespaces/default?dryRun=All
DELETE /api/v1/namespaces/kube-system?dryRun=All
DELETE /api/v1/namespaces?dryRun=All
DELETE /apis/scheduling.k8s.io/v1/priorityclasses/system-node-critical?dryRun=All
POST /apis/scheduling.k8s.io/v1/priorityclasses?dryRun=All {"metadata":{"name":"system-x"},"value":1}
DELETE /apis/flowcontrol.apiserver.k8s.io/v1/flowschemas/exempt?dryRun=All
DELETE /apis/networking.k8s.io/v1/servicecidrs/kubernetes?dryRun=All
POST /apis/rbac.authorization.k8s.io/v1/clusterroles?dryRun=All {"metadata":{"name":"system:x"},"rules":[{"verbs":["*"],"apiGroups":["*"],"resources":["*"]}]}
`
