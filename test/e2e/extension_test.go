package e2e

import "fmt"

const notesConfig = "../extension/config/notes.yaml"

// servesNotes installs an API server of somebody else's (test/extension) behind an APIService: kubectl uses
// its kind like any other, it lets clients do what this cluster's roles let them, and while it is away only
// its own group is.
func servesNotes(c *cluster) {
	c.t.Helper()
	wait := fmt.Sprint(patience)
	available := func(status string) {
		c.kubectl("wait", "apiservice/v1.notes.wherry.dev", "--for=condition=Available="+status, "--timeout", wait)
	}
	c.kubectl("apply", "-f", notesConfig)
	available("True")
	note := c.file(`{apiVersion: notes.wherry.dev/v1, kind: Note, metadata: {name: milk, labels: {at: shop}}, text: two bottles}`)
	c.prints("note.notes.wherry.dev/milk created", "create", "-f", note)
	c.refuses("AlreadyExists", "create", "-f", note)
	c.prints("^two bottles$", "get", "nt", "-l", "at=shop", "-o", "jsonpath={.items[*].text}")
	c.prints(`(?m)^notes +nt +notes\.wherry\.dev/v1 +true +Note$`, "api-resources", "--api-group=notes.wherry.dev")
	c.prints("(?s)GROUP: +notes.wherry.dev.*Text is what the note says", "explain", "note.text")
	guardsNotes(c)

	c.kubectl("scale", "deployment/notes", "-n", "notes", "--replicas=0")
	available("False")
	c.prints(`^MissingEndpoints: endpointslices for service/notes in "notes" have no addresses with port name "https"$`,
		"get", "apiservice/v1.notes.wherry.dev", "-o", `jsonpath={.status.conditions[?(@.type=="Available")].reason}: `+
			`{.status.conditions[?(@.type=="Available")].message}`)
	c.refuses("ServiceUnavailable|unable to handle the request", "get", "--raw", "/apis/notes.wherry.dev/v1/namespaces/default/notes")
	c.prints("(?m)^deployments ", "api-resources", "--api-group=apps")
	c.kubectl("get", "deployments", "-A")
	c.kubectl("scale", "deployment/notes", "-n", "notes", "--replicas=1")
	available("True")
	c.prints("milk created", "create", "-f", note) // it kept them in memory
	c.prints(`"milk" deleted`, "delete", "note", "milk")
	c.kubectl("delete", "-f", notesConfig, "--timeout", wait)
}

// guardsNotes sees the notes' server refuse a user, and let him read once a role allows it.
func guardsNotes(c *cluster) {
	c.t.Helper()
	asJane := []string{"get", "note", "milk", "-o", "jsonpath={.text}", "--as", "jane"}
	c.refuses(`notes\.notes\.wherry\.dev "milk" is forbidden: User "jane" cannot get resource "notes" in API group "notes\.wherry\.dev"`, asJane...)
	c.kubectl("create", "role", "reader", "--verb=get", "--resource=notes.notes.wherry.dev")
	c.kubectl("create", "rolebinding", "reader", "--role=reader", "--user=jane")
	c.prints("^two bottles$", asJane...)
	c.refuses("is forbidden", "delete", "note", "milk", "--as", "jane")
	c.kubectl("delete", "role,rolebinding", "reader")
}
