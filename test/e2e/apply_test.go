package e2e

import (
	"fmt"
	"maps"
	"strings"
	"testing"
)

// shopFolder is a base of a web server and its page, and an overlay that changes both.
var shopFolder = map[string]string{
	"base/kustomization.yaml": `
resources: [web.yaml]
configMapGenerator:
- {name: page, literals: ["index.html=from the base"]}
`,
	"base/web.yaml": `
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      terminationGracePeriodSeconds: 1
      containers:
      - name: web
        image: docker.io/library/busybox:1.36
        command: [httpd, -f, -p, "8080", -h, /www]
        volumeMounts: [{name: page, mountPath: /www}]
      volumes: [{name: page, configMap: {name: page}}]
---
apiVersion: v1
kind: Service
metadata: {name: web}
spec: {selector: {app: web}, ports: [{name: http, port: 80, targetPort: 8080}]}
`,
	"overlay/kustomization.yaml": `
resources: [../base]
namePrefix: test-
namespace: shop
labels:
- {pairs: {tier: test}, includeSelectors: true, includeTemplates: true}
replicas: [{name: web, count: 2}]
configMapGenerator:
- {name: page, behavior: merge, literals: ["index.html=from the overlay"]}
patches:
- target: {kind: Deployment, name: web}
  patch: |-
    - {op: add, path: /spec/template/spec/containers/0/env, value: [{name: PATCHED, value: "by JSON"}]}
- patch: |-
    apiVersion: v1
    kind: Service
    metadata: {name: web}
    spec: {sessionAffinity: ClientIP}
`,
}

// A folder with an overlay is applied, changed and deleted as a whole. What is generated has a new name
// when it changes, which rolls the pods.
func TestKustomize(t *testing.T) {
	c := startCluster(t)
	c.kubectl("create", "namespace", "shop")
	dir := folder(t, shopFolder)
	c.differs("+  name: test-web", "-k", dir+"/overlay")
	c.kubectl("apply", "-k", dir+"/overlay")
	c.kubectl("rollout", "status", "deployment/test-web", "-n", "shop", "--timeout", fmt.Sprint(patience))
	const page = "/api/v1/namespaces/shop/services/http:test-web:80/proxy/"
	c.prints("^from the overlay$", "get", "--raw", page)
	const patched = "{.spec.replicas} {.spec.template.spec.containers[0].env[0].value} {.spec.selector.matchLabels.tier}"
	if got := c.kubectl("get", "deployment/test-web", "-n", "shop", "-o", "jsonpath="+patched); got != "2 by JSON test" {
		t.Errorf("the deployment: %s", got)
	}
	if got := c.kubectl("get", "service/test-web", "-n", "shop", "-o", "jsonpath={.spec.sessionAffinity}"); got != "ClientIP" {
		t.Errorf("the service's affinity: %s", got)
	}
	if out := c.kubectl("diff", "-k", dir+"/overlay"); out != "" {
		t.Errorf("what was applied differs: %s", out)
	}

	files := maps.Clone(shopFolder)
	files["overlay/kustomization.yaml"] = strings.ReplaceAll(files["overlay/kustomization.yaml"], "from the overlay", "changed")
	changed := folder(t, files)
	c.differs("+  index.html: changed", "-k", changed+"/overlay")
	c.kubectl("apply", "-k", changed+"/overlay")
	c.kubectl("rollout", "status", "deployment/test-web", "-n", "shop", "--timeout", fmt.Sprint(patience))
	c.prints("^changed$", "get", "--raw", page)
	if got := strings.Fields(c.kubectl("get", "configmap", "-n", "shop", "-l", "tier=test", "-o", "name")); len(got) != 2 {
		t.Errorf("config maps: %v, want the one from before too", got)
	}

	c.kubectl("delete", "-k", changed+"/overlay")
	c.kubectl("delete", "-k", dir+"/overlay", "--ignore-not-found")
	c.until("nothing is left", func() bool {
		return c.kubectl("get", "all,configmap", "-n", "shop", "-l", "tier=test", "-o", "name") == ""
	})
}

// differs runs kubectl diff, which fails with 1 when something differs.
func (c *cluster) differs(want string, args ...string) {
	c.t.Helper()
	out, err := c.try(append([]string{"kubectl", "diff"}, args...)...)
	if exitCode(err) != 1 || !strings.Contains(out, want) {
		c.t.Errorf("diff: %v, without %q in %s", err, want, out)
	}
}

const (
	keptManifest   = `{apiVersion: v1, kind: ConfigMap, metadata: {name: kept, labels: {app: pruned}}}`
	prunedManifest = keptManifest + `
---
{apiVersion: v1, kind: Service, metadata: {name: dropped, labels: {app: pruned}}, spec: {ports: [{port: 80}]}}
---
{apiVersion: apps/v1, kind: Deployment, metadata: {name: dropped, labels: {app: pruned}}, spec: {replicas: 0, selector: {matchLabels: {app: dropped}},
  template: {metadata: {labels: {app: dropped}}, spec: {containers: [{name: main, image: "docker.io/library/busybox:1.36"}]}}}}
`
)

// What is no longer in the file goes, and what others have made stays: by label, and by apply set.
func TestApplyPrunes(t *testing.T) {
	c := startCluster(t)
	c.kubectl("create", "configmap", "foreign")
	for name, how := range map[string][]string{
		"label":                   {"-l", "app=pruned"},
		"apply set, a secret":     {"--applyset", "set"},
		"apply set, a config map": {"--applyset", "configmaps/set"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv("KUBECTL_APPLYSET", "true")
			args := append([]string{"apply", "-n", "default", "--prune"}, how...)
			c.kubectl(append(args, "-f", c.file(prunedManifest))...)
			out := c.kubectl(append(args, "-f", c.file(keptManifest))...)
			for _, want := range []string{"configmap/kept unchanged\n", "service/dropped pruned\n", "deployment.apps/dropped pruned\n"} {
				if !strings.Contains(out, want) {
					t.Errorf("apply says %q, without %q", out, want)
				}
			}
			if got := c.kubectl("get", "deployment,service,configmap", "-l", "app=pruned", "-o", "name"); got != "configmap/kept\n" {
				t.Errorf("left: %s", got)
			}
			c.kubectl("get", "configmap", "foreign")
			c.kubectl("delete", "configmap,secret", "set", "kept", "--ignore-not-found")
		})
	}
}
