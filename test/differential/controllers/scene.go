package main

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes/scheme"
)

// labelOwner names the workload that a pod is of, in its template.
const labelOwner = "owner"

// happening is something that is done to one side.
type happening func(context.Context, *side) error

// scene is what happens in a namespace. It decides at random what, and each side does it.
type scene struct {
	*rand.Rand
	namespace string
	themes    []string
	made      []thing
	count     int
}

// thing is an object that a scene has made.
type thing struct {
	theme, name string
	gvr         schema.GroupVersionResource
}

// theme is a kind of objects, with what can happen to them.
type theme struct {
	gvr    schema.GroupVersionResource
	create func(s *scene, name string) runtime.Object
	change func(s *scene, t thing) (what string, do happening) // nil: it is only made and deleted
}

func themes() []string { return slices.Sorted(maps.Keys(all)) }

func newScene(seed uint64, only string) *scene {
	s := &scene{
		Rand:      rand.New(rand.NewPCG(seed, 7)), //nolint:gosec // it is to be repeated, not to be secret
		namespace: fmt.Sprint("scene-", seed), themes: themes(),
	}
	if only != "" {
		s.themes = strings.Split(only, ",")
	}
	// Most scenes are about few things, so that these meet.
	s.Shuffle(len(s.themes), func(i, j int) { s.themes[i], s.themes[j] = s.themes[j], s.themes[i] })
	s.themes = s.themes[:min(len(s.themes), 2+s.IntN(3))]
	return s
}

func (s *scene) chance(n int) bool { return s.IntN(n) == 0 }

func pick[T any](s *scene, values ...T) T { return values[s.IntN(len(values))] }

// next decides what happens next.
func (s *scene) next(step int) (what string, do happening) {
	if step == 0 {
		return "namespace " + s.namespace, func(ctx context.Context, side *side) error {
			ns := &v1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: s.namespace}}
			_, err := side.client.CoreV1().Namespaces().Create(ctx, ns, metav1.CreateOptions{})
			return err
		}
	}
	if s.chance(12) {
		return s.shake()
	}
	if len(s.made) == 0 || len(s.made) < 5 && s.chance(4) {
		return s.create()
	}
	t := pick(s, s.made...)
	if change := all[t.theme].change; change != nil && !s.chance(6) {
		return change(s, t)
	}
	if len(s.made) > 1 && s.chance(2) {
		return s.remove(t)
	}
	return s.create()
}

// shaken is the node to which things happen. It is as before when the scene is over.
const shaken = "n-2"

// shake changes a node.
func (s *scene) shake() (string, happening) {
	// Of a taint that lets pods stay, upstream's DaemonSets hear when something else happens.
	patch := pick(s, `{"spec":{"taints":[{"key":"away","effect":"NoExecute"}]}}`, `{"spec":{"unschedulable":true}}`, `{"metadata":{"labels":{"topology.kubernetes.io/zone":"z-1"}}}`, restored)
	return "node " + shaken + " " + patch, func(ctx context.Context, side *side) error { return side.shake(ctx, patch) }
}

// restored is the patch after which the node is as before.
const restored = `{"spec":{"taints":null,"unschedulable":null},"metadata":{"labels":{"topology.kubernetes.io/zone":"z-0"}}}`

// shake patches the node. As long as it is not as before, the player binds no more pods to it.
func (s *side) shake(ctx context.Context, patch string) error {
	s.player.avoid(shaken, patch != restored)
	_, err := s.client.CoreV1().Nodes().Patch(ctx, shaken, types.MergePatchType, []byte(patch), metav1.PatchOptions{})
	return err
}

func (s *scene) create() (string, happening) {
	name := pick(s, s.themes...)
	s.count++
	t := thing{name, fmt.Sprintf("%s-%d", name, s.count), all[name].gvr}
	if slices.Contains(cluster, t.gvr) {
		t.name = s.namespace + "-" + t.name
	}
	o := all[name].create(s, t.name)
	s.made = append(s.made, t)
	content, err := json.Marshal(o)
	return fmt.Sprintf("create %s %s", t.name, content), func(ctx context.Context, side *side) error {
		if err != nil {
			return err
		}
		return side.create(ctx, s.namespace, t.gvr, o)
	}
}

func (s *scene) remove(t thing) (string, happening) {
	s.made = slices.DeleteFunc(s.made, func(o thing) bool { return o == t })
	policy := pick(s, metav1.DeletePropagationBackground, metav1.DeletePropagationBackground, metav1.DeletePropagationForeground, metav1.DeletePropagationOrphan)
	return fmt.Sprintf("delete %s %s", t.name, policy), func(ctx context.Context, side *side) error {
		err := side.resource(s.namespace, t.gvr).Delete(ctx, t.name, metav1.DeleteOptions{PropagationPolicy: &policy})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return err
	}
}

// patch returns a change of an object by a JSON merge patch.
func (s *scene) patch(t thing, patch string) (string, happening) {
	return fmt.Sprintf("patch %s %s", t.name, patch), func(ctx context.Context, side *side) error {
		_, err := side.resource(s.namespace, t.gvr).Patch(ctx, t.name, types.MergePatchType, []byte(patch), metav1.PatchOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return err
	}
}

// template returns the template of a workload's pods.
func (s *scene) template(owner string) v1.PodTemplateSpec {
	t := v1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{labelOwner: owner, "app": pick(s, "a", "b")}}}
	t.Spec.Containers = []v1.Container{{Name: "c", Image: pick(s, "image:1", "image:2"), Ports: []v1.ContainerPort{{Name: "web", ContainerPort: 80}}}}
	t.Spec.TerminationGracePeriodSeconds = new(int64(0))
	if s.chance(6) {
		t.Labels[labelFate] = fateWaits
	}
	return t
}

func selector(owner string) *metav1.LabelSelector {
	return &metav1.LabelSelector{MatchLabels: map[string]string{labelOwner: owner}}
}

// retemplate returns a change of a template that makes a new revision, or goes back to an old one.
func (s *scene) retemplate(t thing) (string, happening) {
	image := pick(s, "image:1", "image:2", "image:3")
	return s.patch(t, fmt.Sprintf(`{"spec":{"template":{"spec":{"containers":[{"name":"c","image":%q,"ports":[{"name":"web","containerPort":80}]}]}}}}`, image))
}

// scale returns a change of the number of pods.
func (s *scene) scale(t thing) (string, happening) {
	return s.patch(t, fmt.Sprintf(`{"spec":{"replicas":%d}}`, s.IntN(5)))
}

// strike returns something that happens to a pod of a workload: how says what.
func (s *scene) strike(t thing) (string, happening) {
	how := pick(s, "delete", "fail", "succeed", "unready", "ready", "unlabel")
	which := s.IntN(3)
	return fmt.Sprintf("%s a pod of %s", how, t.name), func(ctx context.Context, side *side) error {
		pods, err := side.of(ctx, s.namespace, t.name)
		if err != nil || len(pods) == 0 {
			return err
		}
		if strings.HasPrefix(t.name, "statefulset") || strings.HasPrefix(t.name, "daemonset") {
			slices.SortFunc(pods, func(a, b v1.Pod) int { return strings.Compare(a.Spec.NodeName+a.Name, b.Spec.NodeName+b.Name) })
		}
		return side.strike(ctx, &pods[which%len(pods)], how)
	}
}

// strike does something to a pod.
func (s *side) strike(ctx context.Context, p *v1.Pod, how string) error {
	api := s.client.CoreV1().Pods(p.Namespace)
	switch how {
	case "delete":
		return api.Delete(ctx, p.Name, metav1.DeleteOptions{})
	case "unlabel":
		_, err := api.Patch(ctx, p.Name, types.MergePatchType, []byte(`{"metadata":{"labels":{"owner":"nobody"}}}`), metav1.PatchOptions{})
		return err
	case "fail", "fail-42":
		p.Status.Phase = v1.PodFailed
		code := int32(1)
		if how == "fail-42" {
			code = 42
		}
		p.Status.ContainerStatuses = []v1.ContainerStatus{{
			Name: "c", Image: "image", State: v1.ContainerState{Terminated: &v1.ContainerStateTerminated{ExitCode: code, Reason: "Error", FinishedAt: metav1.Now()}},
		}}
		become(p, v1.ConditionFalse)
	case "succeed":
		p.Status.Phase = v1.PodSucceeded
		become(p, v1.ConditionFalse)
	case "ready":
		become(p, v1.ConditionTrue)
	case "unready":
		become(p, v1.ConditionFalse)
	}
	_, err := api.UpdateStatus(ctx, p, metav1.UpdateOptions{})
	return err
}

// create makes an object, with its status if it has any.
func (s *side) create(ctx context.Context, namespace string, gvr schema.GroupVersionResource, o runtime.Object) error {
	gvks, _, err := scheme.Scheme.ObjectKinds(o)
	if err != nil {
		return err
	}
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(o)
	if err != nil {
		return err
	}
	u := &unstructured.Unstructured{Object: content}
	u.SetGroupVersionKind(gvks[0])
	_, err = s.resource(namespace, gvr).Create(ctx, u, metav1.CreateOptions{})
	return err
}

// resource returns a client for the objects of a namespace, or for those of the cluster.
func (s *side) resource(namespace string, gvr schema.GroupVersionResource) dynamic.ResourceInterface {
	if slices.Contains(cluster, gvr) {
		return s.dynamic.Resource(gvr)
	}
	return s.dynamic.Resource(gvr).Namespace(namespace)
}
