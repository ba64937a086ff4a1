package e2e

import (
	"fmt"
	"strings"
	"testing"

	"wherry.dev/test/images"
)

const operatorConfig = "../operator/config/"

// An operator built with controller-runtime is installed by its manifests and works as it does elsewhere:
// one of its two pods leads, shops become Deployments, say so in their status, are repaired, and take
// with them what they own once their finalizer has had its turn.
func TestOperator(t *testing.T) {
	c := newCluster(t)
	c.addImage("busybox.tar", images.SaveBusybox)
	c.addImage("operator.tar", saveProgram(t, "wherry.dev/test/operator", "wherry.dev/shop-operator:1"))
	c.up()
	c.kubectl("apply", "-f", operatorConfig+"crd.yaml", "-f", operatorConfig+"operator.yaml")
	wait := fmt.Sprint(patience)
	c.kubectl("rollout", "status", "deployment/shop-operator", "-n", "shop-system", "--timeout", wait)
	c.kubectl("apply", "-f", c.file(`{apiVersion: shop.wherry.dev/v1, kind: Shop, metadata: {name: books}, spec: {greeting: come in}}`))
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
	c.kubectl("delete", "-f", operatorConfig+"operator.yaml", "-f", operatorConfig+"crd.yaml", "--timeout", wait)
}
