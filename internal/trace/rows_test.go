package trace

import (
	"strings"
	"testing"
	"time"
)

func row(name string, spans ...Span) Trace { return Trace{Name: name, Spans: spans} }

func span(name string, from, to int) Span { return Span{Name: name, Start: at(from), End: at(to)} }

func TestRows(t *testing.T) {
	web := []Trace{
		row("b", span("apiserver: create pod", 500, 600), span("image: pull x", 600, 1000), span("apiserver: update pod status", 800, 850), span("cri: start container", 900, 1000)),
		row("a", span("scheduler: bind", 100, 200), span("cri: run sandbox", 200, 500), Span{Name: "network: setup", Start: at(300), End: at(400), Error: "no luck"}),
	}
	served := Trace{Name: "c", Spans: []Span{span("kubelet: admit", 100, 200), span("kubelet: probe", 900, 900), span("endpointslice: ready for service w", 1700, 1800), span("proxy: rules of service w", 1800, 1900), span("kubelet: restart", 9000, 9100)}}
	objects := []Trace{
		{Kind: "deployment", Name: "w", Spans: []Span{span("apiserver: create deployment", 0, 100)}},
		{Kind: "service", Name: "w", Spans: []Span{span("apiserver: create service", 100, 200), span("dns: name is known", 300, 300)}},
		{Kind: "service", Name: "old", Spans: []Span{span("apiserver: create service", -50_000, -49_900)}},
	}
	late := row("late", span("kubelet: admit", 60_000, 60_100))
	for name, tc := range map[string]struct {
		rows Rows
		all  bool
		want string
	}{
		"together": {Rows{Title: "deployment ns/w", Created: at(0), Pods: web, Untraced: []string{"old"}}, false, `
deployment ns/w  0                    500.0 ms             1000.0 ms
pod a                 sssssnnnnnnnnnnnnnnnn                           400.0 ms  failed: no luck
pod b                                     aaaaaiiiiiiiiiiiiiiicccccc  500.0 ms
pod old: no trace is kept of it
a API server · s scheduler · i image · n sandbox and network · c containers
`},
		"until it serves": {Rows{Title: "deployment ns/w", Created: at(0), Objects: objects, Pods: []Trace{served}}, false, `
deployment ns/w  0                    950.0 ms             1900.0 ms
deployment w     aaa                                                  100.0 ms
service w          aaaa  d                                            200.0 ms
pod c              kkkk                  k                    eeeppp 1800.0 ms
a API server · k kubelet · e endpoints · p service rules · d name
`},
		"later": {Rows{Title: "deployment ns/w", Created: at(0), Pods: []Trace{late}}, false, `
deployment ns/w was created at 1970-01-01T00:16:40Z

1m0s after the creation
                 0                     50.0 ms              100.0 ms
pod late         kkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkk  100.0 ms
k kubelet
`},
		"nothing": {Rows{Title: "deployment ns/w", Created: at(0), Pods: []Trace{row("x")}}, false, `
deployment ns/w was created at 1970-01-01T00:16:40Z
no steps recorded
`},
	} {
		t.Run(name, func(t *testing.T) {
			var b strings.Builder
			if err := (Draw{Width: 80}).Rows(&b, tc.rows, tc.all); err != nil {
				t.Fatal(err)
			}
			var got []string
			for line := range strings.Lines(b.String()) {
				got = append(got, strings.TrimRight(line, " \n"))
			}
			want := strings.Split(strings.Trim(tc.want, "\n"), "\n")
			if strings.TrimSpace(strings.Join(got, "\n")) != strings.Join(want, "\n") {
				t.Errorf("got\n%s\nwant\n%s", b.String(), tc.want)
			}
		})
	}
}

// A pod that restarted for days must not press the starts of the others into one column.
func TestRowsShowTheStartOnly(t *testing.T) {
	pod := row("p", span("kubelet: admit", 0, 100), span("cri: stop container", 3_600_000, 3_600_100))
	for all, want := range map[bool]string{false: "100.0 ms", true: "3600100.0 ms"} {
		var b strings.Builder
		if err := (Draw{Width: 80}).Rows(&b, Rows{Title: "d", Created: at(0).Truncate(time.Second), Pods: []Trace{pod}}, all); err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(b.String(), want) {
			t.Errorf("all %v: no %q in\n%s", all, want, b.String())
		}
	}
}
