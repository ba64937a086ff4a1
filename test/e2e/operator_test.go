package e2e

import (
	"fmt"
	"regexp"
	"strings"
	"testing"

	"wherry.dev/test/images"
)

const operatorConfig = "../operator/config/"

// An operator built with controller-runtime is installed by its manifests and works as it does elsewhere:
// its webhooks, behind a Service, give defaults, refuse and convert; one of its two pods leads; shops become
// Deployments, say so in their status, are repaired, and take with them what they own once their finalizer
// has had its turn.
func TestOperator(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.addImage("busybox.tar", images.SaveBusybox)
	c.addImage("operator.tar", saveProgram(t, "wherry.dev/test/operator", "wherry.dev/shop-operator:1"))
	c.addImage("notes.tar", saveProgram(t, "wherry.dev/test/extension", "wherry.dev/notes:1"))
	c.up()
	c.kubectl("apply", "-k", operatorConfig)
	wait := fmt.Sprint(patience)
	c.kubectl("rollout", "status", "deployment/shop-operator", "-n", "shop-system", "--timeout", wait)
	judgesShops(c)
	c.kubectl("apply", "-f", c.file(`{apiVersion: shop.wherry.dev/v1, kind: Shop, metadata: {name: books}, spec: {greeting: come in}}`))
	convertsShops(c)
	failsClosed(c)
	c.kubectl("wait", "shop/books", "--for=condition=Ready", "--timeout", wait)
	c.prints("^books +1 +1 +come in\n$", "get", "sh", "-o", "wide", "--no-headers")
	c.prints("Opened .*made deployment books", "events", "--for", "shop/books")

	c.kubectl("scale", "shop/books", "--replicas=2")
	c.kubectl("wait", "shop/books", "--for=jsonpath={.status.readyReplicas}=2", "--timeout", wait)
	before := c.field("deployment/books", "{.metadata.uid}")
	c.kubectl("delete", "deployment", "books")
	c.until("the operator makes its deployment again", func() bool {
		uid := c.kubectl("get", "deployment", "books", "--ignore-not-found", "-o", "jsonpath={.metadata.uid}")
		return uid != "" && uid != before
	})

	leader := func() string {
		pod, _, _ := strings.Cut(c.kubectl("get", "lease/shops.shop.wherry.dev", "-n", "shop-system", "-o", "jsonpath={.spec.holderIdentity}"), "_")
		return pod
	}
	led := leader()
	c.kubectl("delete", "pod", led, "-n", "shop-system")
	c.until("another pod leads", func() bool { now := leader(); return now != "" && now != led })

	c.kubectl("delete", "shop", "books", "--timeout", wait)
	c.kubectl("get", "configmap", "books-closed") // the new leader's finalizer ran
	c.until("what the shop owned is gone", func() bool {
		return c.kubectl("get", "deployment,replicaset,pod", "-o", "name") == ""
	})
	c.kubectl("delete", "-k", operatorConfig, "--ignore-not-found", "--timeout", wait)
	servesNotes(c) // on the same node, whose start costs seconds
}

// refuses waits until kubectl fails and says what matches the pattern.
func (c *cluster) refuses(pattern string, args ...string) {
	c.t.Helper()
	want := regexp.MustCompile(pattern)
	c.until(fmt.Sprintf("kubectl %s is refused with %s", strings.Join(args, " "), pattern), func() bool {
		c.t.Helper()
		_, err := c.try(append([]string{"kubectl"}, args...)...)
		return err != nil && want.MatchString(err.Error())
	})
}

// tryShop asks the webhooks about a shop, and prints it as it would be. Nothing is stored.
func tryShop(c *cluster, shop string) []string {
	return []string{"create", "--dry-run=server", "-o", "jsonpath={.spec}", "-f", c.file(shop)}
}

// judgesShops sees shops defaulted and refused.
func judgesShops(c *cluster) {
	c.t.Helper()
	c.prints(`^{"greeting":"welcome to tea","replicas":1}$`, tryShop(c, `{apiVersion: shop.wherry.dev/v1, kind: Shop, metadata: {name: tea}}`)...)
	c.refuses(`The Shop "tea" is invalid: spec\.greeting: Invalid value: "COME IN": a greeting must not shout`,
		tryShop(c, `{apiVersion: shop.wherry.dev/v1, kind: Shop, metadata: {name: tea}, spec: {greeting: COME IN}}`)...)
}

const oldShops = "shops.v1alpha1.shop.wherry.dev"

// convertsShops reads and writes the shop books and a new one as v1alpha1; the webhooks, which know v1 only,
// judge those as well.
func convertsShops(c *cluster) {
	c.t.Helper()
	c.prints(`^{"message":"come in","size":1}$`, "get", oldShops, "books", "-o", "jsonpath={.spec}")
	c.prints(`^{"message":"welcome to tea","size":3}$`, tryShop(c, `{apiVersion: shop.wherry.dev/v1alpha1, kind: Shop, metadata: {name: tea}, spec: {size: 3}}`)...)
	c.refuses("a greeting must not shout", "patch", oldShops, "books", "--type=merge", "-p", `{"spec":{"message":"COME IN"}}`)
	c.kubectl("patch", oldShops, "books", "--type=merge", "-p", `{"spec":{"message":"come in!"}}`)
	if got, want := c.field("shop/books", "{.apiVersion} {.spec.greeting}"), "shop.wherry.dev/v1 come in!"; got != want {
		c.t.Errorf("a shop that was changed as v1alpha1: %q, want %q", got, want)
	}
	c.kubectl("patch", "shop", "books", "--type=merge", "-p", `{"spec":{"greeting":"come in"}}`)
}

// failsClosed stops the operator and starts it again: meanwhile shops are refused and cannot be converted,
// and all else goes on.
func failsClosed(c *cluster) {
	c.t.Helper()
	tea := tryShop(c, `{apiVersion: shop.wherry.dev/v1, kind: Shop, metadata: {name: tea}}`)
	wait := fmt.Sprint(patience)
	c.kubectl("scale", "deployment/shop-operator", "-n", "shop-system", "--replicas=0")
	c.kubectl("wait", "pod", "-n", "shop-system", "-l", "app=shop-operator", "--for=delete", "--timeout", wait)
	at := `Post "https://shop-webhook\.shop-system\.svc:443/%s\?timeout=%ds": dial tcp [0-9.]+:443: connect: connection refused`
	c.refuses(`Internal error occurred: failed calling webhook "mshop\.shop\.wherry\.dev": failed to call webhook: `+
		fmt.Sprintf(at, "mutate-shop-wherry-dev-v1-shop", 10), tea...)
	c.refuses(`conversion webhook for shop\.wherry\.dev/v1, Kind=Shop failed: `+fmt.Sprintf(at, "convert", 30), "get", oldShops, "books")
	c.kubectl("get", "shop", "books") // as it is stored
	c.kubectl("create", "configmap", "meanwhile")
	c.kubectl("delete", "configmap", "meanwhile")
	c.kubectl("scale", "deployment/shop-operator", "-n", "shop-system", "--replicas=2")
	c.prints("welcome to tea", tea...)
	c.prints("come in", "get", oldShops, "books", "-o", "jsonpath={.spec.message}")
	c.kubectl("rollout", "status", "deployment/shop-operator", "-n", "shop-system", "--timeout", wait)
}
