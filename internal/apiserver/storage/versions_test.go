package storage

import (
	"fmt"
	"reflect"
	"runtime"
	"sync"
	"testing"

	batchv1 "k8s.io/api/batch/v1"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/types"

	"wherry.dev/internal/apiserver/scheme"
)

func podVersion(uid types.UID, status v1.PodPhase) *v1.Pod {
	return &v1.Pod{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
		ObjectMeta: metav1.ObjectMeta{
			Name: "p", Namespace: "ns", UID: uid, Labels: map[string]string{"a": "b"}, Finalizers: []string{"f/f"},
			ManagedFields: []metav1.ManagedFieldsEntry{
				{Manager: "m", FieldsV1: metav1.NewFieldsV1(`{"f:spec":{}}`)},
				{Manager: "kubelet", FieldsV1: metav1.NewFieldsV1(fmt.Sprintf(`{"f:status":{"f:%s":{}}}`, status))},
			},
		},
		Spec: v1.PodSpec{Containers: []v1.Container{{Name: "c", Resources: v1.ResourceRequirements{
			Requests: v1.ResourceList{v1.ResourceCPU: resource.MustParse("100m")},
		}}}},
		Status: v1.PodStatus{Phase: status},
	}
}

// hubCodec is a codec that decodes to the published types, as the API server's does.
func hubCodec(t *testing.T, gv schema.GroupVersion) apiruntime.Codec {
	t.Helper()
	s := scheme.New()
	codec, _, err := scheme.StorageCodec(s, serializer.NewCodecFactory(s), gv)
	if err != nil {
		t.Fatal(err)
	}
	return codec
}

// decode brings an object through a codec, as a watch does.
func decode[T apiruntime.Object](t *testing.T, codec apiruntime.Codec, obj T) T {
	t.Helper()
	data, err := apiruntime.Encode(codec, obj)
	if err != nil {
		t.Fatal(err)
	}
	got, err := apiruntime.Decode(codec, data)
	if err != nil {
		t.Fatal(err)
	}
	return got.(T)
}

// TestVersionsShareWhatDidNotChange: the watch cache of a burst of jobs held every version of every
// pod whole, a hundred MiB for a thousand.
func TestVersionsShareWhatDidNotChange(t *testing.T) {
	plain := hubCodec(t, v1.SchemeGroupVersion)
	codec := sharing(v1.Resource("pods"), plain)
	before := decode(t, codec, podVersion("u", v1.PodRunning))
	want := podVersion("u", v1.PodSucceeded)
	want.Finalizers = nil
	now := decode(t, codec, want.DeepCopy())
	if !reflect.DeepEqual(now, decode(t, plain, want)) {
		t.Errorf("the newer version is not what was written: %+v", now)
	}
	if !reflect.DeepEqual(before, decode(t, plain, podVersion("u", v1.PodRunning))) {
		t.Errorf("the older version has changed: %+v", before)
	}
	if &now.Spec.Containers[0] != &before.Spec.Containers[0] ||
		now.ManagedFields[0].FieldsV1 != before.ManagedFields[0].FieldsV1 {
		t.Error("two versions have a spec, or fields of a manager, of their own")
	}

	changed := podVersion("u", v1.PodSucceeded)
	changed.Spec.NodeName = "n"
	if got := decode(t, codec, changed); got.Spec.NodeName != "n" || now.Spec.NodeName != "" {
		t.Errorf("a changed spec is %+v, the one before %+v", got.Spec, now.Spec)
	}
	if other := decode(t, codec, podVersion("other", v1.PodRunning)); &other.Spec.Containers[0] == &now.Spec.Containers[0] {
		t.Error("another pod shares this one's spec")
	}
}

// TestJobsShareToo: a job is written three times while it runs.
func TestJobsShareToo(t *testing.T) {
	codec := sharing(batchv1.Resource("jobs"), hubCodec(t, batchv1.SchemeGroupVersion))
	job := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{UID: "u"}, Spec: batchv1.JobSpec{Parallelism: new(int32(1))}}
	before := decode(t, codec, job)
	job.Status.Succeeded = 1
	if now := decode(t, codec, job); now.Spec.Parallelism != before.Spec.Parallelism || now.Status.Succeeded != 1 {
		t.Errorf("%+v", now)
	}
}

// TestVersionsForgetWhatIsGone: the codec keeps nothing alive, and no list of what is gone.
func TestVersionsForgetWhatIsGone(t *testing.T) {
	codec := sharing(v1.Resource("pods"), hubCodec(t, v1.SchemeGroupVersion)).(*versions[v1.Pod])
	kept := decode(t, codec, podVersion("kept", v1.PodRunning))
	const round, rounds = 3 * sweepFrom, 10
	for r := range rounds {
		for i := range round {
			decode(t, codec, podVersion(types.UID(fmt.Sprint(r, "-", i)), v1.PodRunning))
		}
		runtime.GC()
	}
	// It looks for what is gone when there is twice as much as was left the last time, when no more
	// than a round was.
	if len(codec.last) > 3*round {
		t.Errorf("%d of %d pods are remembered, of which one exists", len(codec.last), rounds*round)
	}
	if now := decode(t, codec, podVersion("kept", v1.PodFailed)); &now.Spec.Containers[0] != &kept.Spec.Containers[0] {
		t.Error("the pod that exists was forgotten")
	}
}

// A watch decodes its events side by side: a version was shared with while it was still being made (seen by the
// race detector).
func TestVersionsAreDecodedSideBySide(t *testing.T) {
	codec := sharing(v1.Resource("pods"), hubCodec(t, v1.SchemeGroupVersion))
	var data [][]byte
	for _, phase := range []v1.PodPhase{v1.PodPending, v1.PodRunning, v1.PodSucceeded} {
		encoded, err := apiruntime.Encode(codec, podVersion("u", phase))
		if err != nil {
			t.Fatal(err)
		}
		data = append(data, encoded)
	}
	var running sync.WaitGroup
	for i := range 200 {
		running.Go(func() {
			got, err := apiruntime.Decode(codec, data[i%len(data)])
			if err != nil {
				t.Error(err)
				return
			}
			want, err := apiruntime.Decode(hubCodec(t, v1.SchemeGroupVersion), data[i%len(data)])
			if err != nil || !reflect.DeepEqual(got, want) {
				t.Errorf("decoded %+v, want %+v, %v", got, want, err)
			}
		})
	}
	running.Wait()
}
