package scheme

import (
	"fmt"
	"net/url"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// query reads typed values. The first parse error is kept.
type query struct {
	values url.Values
	err    *error
}

func (q query) str(name string, out *string) {
	if v := q.values.Get(name); v != "" {
		*out = v
	}
}

func (q query) strPtr(name string, out **string) {
	if q.values.Has(name) {
		v := q.values.Get(name)
		*out = &v
	}
}

// boolean follows the API's habit: a present value other than "false" and "0" is true.
func (q query) boolean(name string, out *bool) {
	if q.values.Has(name) {
		v := q.values.Get(name)
		*out = v != "false" && v != "0"
	}
}

func (q query) int64Ptr(name string, out **int64) {
	v := q.values.Get(name)
	if v == "" {
		return
	}
	n, err := strconv.ParseInt(v, 10, 64)
	if err != nil {
		q.fail(name, v, err)
		return
	}
	*out = &n
}

func (q query) time(name string, out **metav1.Time) {
	v := q.values.Get(name)
	if v == "" {
		return
	}
	t, err := time.Parse(time.RFC3339, v)
	if err != nil {
		q.fail(name, v, err)
		return
	}
	mt := metav1.NewTime(t)
	*out = &mt
}

func (q query) ports(name string, out *[]int32) {
	for _, v := range q.values[name] {
		n, err := strconv.ParseInt(v, 10, 32)
		if err != nil {
			q.fail(name, v, err)
			return
		}
		*out = append(*out, int32(n))
	}
}

func (q query) fail(name, value string, err error) {
	if *q.err == nil {
		*q.err = fmt.Errorf("query parameter %s=%q: %w", name, value, err)
	}
}

// optionConversions has one entry for each kind of options that is sent as a query.
var optionConversions = []struct {
	out  runtime.Object
	fill func(q query, out any)
}{
	{&corev1.PodLogOptions{}, func(q query, out any) {
		o := out.(*corev1.PodLogOptions)
		q.str("container", &o.Container)
		q.boolean("follow", &o.Follow)
		q.boolean("previous", &o.Previous)
		q.int64Ptr("sinceSeconds", &o.SinceSeconds)
		q.time("sinceTime", &o.SinceTime)
		q.boolean("timestamps", &o.Timestamps)
		q.int64Ptr("tailLines", &o.TailLines)
		q.int64Ptr("limitBytes", &o.LimitBytes)
		q.boolean("insecureSkipTLSVerifyBackend", &o.InsecureSkipTLSVerifyBackend)
		q.strPtr("stream", &o.Stream)
	}},
	{&corev1.PodExecOptions{}, func(q query, out any) {
		o := out.(*corev1.PodExecOptions)
		q.boolean("stdin", &o.Stdin)
		q.boolean("stdout", &o.Stdout)
		q.boolean("stderr", &o.Stderr)
		q.boolean("tty", &o.TTY)
		q.str("container", &o.Container)
		o.Command = q.values["command"]
	}},
	{&corev1.PodAttachOptions{}, func(q query, out any) {
		o := out.(*corev1.PodAttachOptions)
		q.boolean("stdin", &o.Stdin)
		q.boolean("stdout", &o.Stdout)
		q.boolean("stderr", &o.Stderr)
		q.boolean("tty", &o.TTY)
		q.str("container", &o.Container)
	}},
	{&corev1.PodPortForwardOptions{}, func(q query, out any) {
		o := out.(*corev1.PodPortForwardOptions)
		q.ports("ports", &o.Ports)
	}},
	{&corev1.PodProxyOptions{}, func(q query, out any) { q.str("path", &out.(*corev1.PodProxyOptions).Path) }},
	{&corev1.NodeProxyOptions{}, func(q query, out any) { q.str("path", &out.(*corev1.NodeProxyOptions).Path) }},
	{&corev1.ServiceProxyOptions{}, func(q query, out any) { q.str("path", &out.(*corev1.ServiceProxyOptions).Path) }},
}
