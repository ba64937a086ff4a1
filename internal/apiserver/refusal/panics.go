package refusal

import (
	"fmt"
	"net/http"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"
)

// Panics returns a handler that answers a panic over a strategic merge patch with a bad request: the library panics if
// lists in a patch are of other things than it expects. Its panics have the stack in them. All others go on.
func Panics(next http.Handler, codecs runtime.NegotiatedSerializer) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		defer func() {
			p := recover()
			if p == nil {
				return
			}
			what, stack, _ := strings.Cut(fmt.Sprint(p), "\n")
			if req.Method != http.MethodPatch || !strings.Contains(stack, "/strategicpatch.") {
				panic(p)
			}
			err := apierrors.NewBadRequest("the strategic merge patch does not fit the object: " + what)
			responsewriters.ErrorNegotiated(err, codecs, schema.GroupVersion{Version: "v1"}, w, req)
		}()
		next.ServeHTTP(w, req)
	})
}
