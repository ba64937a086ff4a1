package gather

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"wherry.dev/internal/api/report"
	"wherry.dev/internal/explain"
)

// inWords returns the error in the answer's body, if there is one: the error of a raw request has
// only the name of the status code.
func inWords(err error, body []byte) error {
	var status metav1.Status
	if json.Unmarshal(body, &status) == nil && status.Kind == "Status" && status.Message != "" {
		return &apierrors.StatusError{ErrStatus: status}
	}
	return err
}

// askKubelet asks the kubelet of the pod's node for a report of what the pod waits for.
func askKubelet(ctx context.Context, client kubernetes.Interface, f *explain.Facts) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	answer, err := client.CoreV1().RESTClient().Get().Resource("nodes").Name(f.Pod.Spec.NodeName).SubResource("proxy").
		Suffix("debug", "reports", f.Pod.Namespace, f.Pod.Name, string(f.Pod.UID)).DoRaw(ctx)
	kubelet := &report.Pod{}
	if err == nil {
		err = json.Unmarshal(answer, kubelet)
	} else {
		err = inWords(err, answer)
	}
	switch {
	case err == nil && kubelet.Kind != report.Kind:
		f.KubeletErr = fmt.Sprintf("it answered with a %q instead of a %s: it is not Wherry's", kubelet.Kind, report.Kind)
	case err == nil && kubelet.APIVersion != report.APIVersion:
		f.KubeletErr = fmt.Sprintf("it reports as %s, but this wherry reads %s: use the same version of wherry as the node", kubelet.APIVersion, report.APIVersion)
	case err == nil:
		f.Kubelet = kubelet
	case apierrors.IsNotFound(err) && bytes.Contains(answer, []byte(report.NoPod)):
		f.KubeletGone = true
	case apierrors.IsNotFound(err):
		f.KubeletErr = "it is not Wherry's, or its debugging handlers are off: " + err.Error()
	default:
		f.KubeletErr = err.Error()
	}
}
