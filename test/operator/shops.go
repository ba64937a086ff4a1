package main

import (
	"context"
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"wherry.dev/test/operator/api"
)

// till keeps a shop until its operator has written down, in the config map <shop>-closed, that it closed.
const till = "shop.wherry.dev/till"

// shops brings each Shop and its Deployment together.
type shops struct {
	client.Client
	events events.EventRecorder
}

func (r *shops) setUp(mgr ctrl.Manager) error {
	return ctrl.NewControllerManagedBy(mgr).For(&api.Shop{}).Owns(&appsv1.Deployment{}).Complete(r)
}

// Reconcile is called for a shop that changed, or whose Deployment did.
func (r *shops) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	var shop api.Shop
	if err := r.Get(ctx, req.NamespacedName, &shop); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	if !shop.DeletionTimestamp.IsZero() {
		return ctrl.Result{}, r.close(ctx, &shop)
	}
	if controllerutil.AddFinalizer(&shop, till) {
		if err := r.Update(ctx, &shop); err != nil {
			return ctrl.Result{}, err
		}
	}
	web := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: shop.Name, Namespace: shop.Namespace}}
	did, err := controllerutil.CreateOrUpdate(ctx, r.Client, web, func() error {
		fill(web, &shop)
		return controllerutil.SetControllerReference(&shop, web, r.Scheme())
	})
	if err != nil {
		return ctrl.Result{}, fmt.Errorf("deployment of %s: %w", req, err)
	}
	if did == controllerutil.OperationResultCreated {
		r.events.Eventf(&shop, web, corev1.EventTypeNormal, "Opened", "Create", "made deployment %s", web.Name)
	}
	return ctrl.Result{}, r.report(ctx, &shop, web)
}

// close lets go of a shop that is being deleted; its Deployment is the garbage collector's.
func (r *shops) close(ctx context.Context, shop *api.Shop) error {
	if !controllerutil.ContainsFinalizer(shop, till) {
		return nil
	}
	note := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: shop.Name + "-closed", Namespace: shop.Namespace}}
	if _, err := controllerutil.CreateOrUpdate(ctx, r.Client, note, func() error { return nil }); err != nil {
		return err
	}
	controllerutil.RemoveFinalizer(shop, till)
	return client.IgnoreNotFound(r.Update(ctx, shop))
}

// report writes the status, if it is another.
func (r *shops) report(ctx context.Context, shop *api.Shop, web *appsv1.Deployment) error {
	old := shop.DeepCopy()
	ready := metav1.Condition{Type: "Ready", Status: metav1.ConditionFalse, Reason: "Opening", ObservedGeneration: shop.Generation}
	if web.Status.ObservedGeneration == web.Generation && web.Status.ReadyReplicas == *web.Spec.Replicas {
		ready.Status, ready.Reason = metav1.ConditionTrue, "Open"
	}
	meta.SetStatusCondition(&shop.Status.Conditions, ready)
	shop.Status.ReadyReplicas, shop.Status.ObservedGeneration = web.Status.ReadyReplicas, shop.Generation
	return r.Status().Patch(ctx, shop, client.MergeFrom(old))
}

// fill gives the Deployment what the shop wants, and leaves what the server has set.
func fill(web *appsv1.Deployment, shop *api.Shop) {
	labels := map[string]string{"shop": shop.Name}
	web.Spec.Replicas = shop.Spec.Replicas
	web.Spec.Selector = &metav1.LabelSelector{MatchLabels: labels}
	web.Spec.Template.Labels = labels
	grace := int64(1)
	web.Spec.Template.Spec.TerminationGracePeriodSeconds = &grace
	if len(web.Spec.Template.Spec.Containers) == 0 {
		web.Spec.Template.Spec.Containers = []corev1.Container{{Name: "web", Image: "docker.io/library/busybox:1.36"}}
	}
	main := &web.Spec.Template.Spec.Containers[0]
	main.Command = []string{"sh", "-c", `mkdir -p /www; echo "$GREETING" > /www/index.html; exec httpd -f -p 8080 -h /www`}
	main.Env = []corev1.EnvVar{{Name: "GREETING", Value: shop.Spec.Greeting}}
}
