package podops

import (
	"context"
	"errors"
	"fmt"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"wherry.dev/internal/api/pods"
	"wherry.dev/internal/kubelet/criconfig"
	"wherry.dev/internal/kubelet/podplan"
	"wherry.dev/internal/safepath"
)

// forget removes the last traces of a pod, and its API object last: whoever waits for that may rely
// on nothing being left.
func (o *Ops) forget(ctx context.Context, in *podplan.Input) podplan.Result {
	pod := in.Pod
	left, err := o.Runtime.ListPodSandbox(ctx, &runtimeapi.PodSandboxFilter{
		LabelSelector: map[string]string{pods.LabelPodUID: string(pod.UID)},
	})
	if err != nil {
		return failed(fmt.Errorf("list sandboxes: %w", err))
	}
	if len(left) > 0 {
		return failed(fmt.Errorf("the pod still has %d sandboxes", len(left)))
	}
	o.Objects.Use(pod.UID, nil)
	o.Tokens.Forget(pod.UID)
	errs := []error{o.Users.Release(pod.UID), safepath.RemoveAll(o.Dirs.Pod(pod.UID))}
	if pod.Name != "" {
		errs = append(errs, o.sweepLogLinks(pod, nil), safepath.RemoveAll(criconfig.LogDir(o.PodLogs, pod)))
	}
	if err := errors.Join(errs...); err != nil {
		return failed(err)
	}
	if in.Absent || in.Record.Static || o.Client == nil {
		return podplan.Result{}
	}
	return failed(Delete(ctx, o.Client, o.Status, pod))
}

// Delete removes the API object of a pod that has ended on its node, once its last status is
// written. A pod that has taken its name since stays.
func Delete(ctx context.Context, client kubernetes.Interface, status Flusher, pod *v1.Pod) error {
	if err := status.Flush(ctx, pod.UID); err != nil {
		return err
	}
	err := client.CoreV1().Pods(pod.Namespace).Delete(ctx, pod.Name, metav1.DeleteOptions{
		GracePeriodSeconds: new(int64(0)), Preconditions: &metav1.Preconditions{UID: &pod.UID},
	})
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
		return fmt.Errorf("delete pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	return nil
}
