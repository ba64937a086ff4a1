package admission

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestWhichPluginsRun(t *testing.T) {
	s := Selection{Enable: []string{"AlwaysDeny", "AlwaysPullImages", "Priority"}, Disable: []string{"LimitRanger", "EventRateLimit"}}
	if errs := s.Validate(); len(errs) > 0 {
		t.Fatal(errs)
	}
	got := s.names()
	for name, want := range map[string]bool{
		"AlwaysDeny": true, "AlwaysPullImages": true, "Priority": true, "PodSecurity": true,
		"LimitRanger": false, "EventRateLimit": false, "PodNodeSelector": false,
	} {
		if slices.Contains(got, name) != want {
			t.Errorf("%s runs: %v", name, !want)
		}
	}
	if !slices.Equal(Selection{}.names(), Defaults()) {
		t.Error("nothing is selected, and not the defaults run")
	}
	order := func(name string) int { return slices.Index(got, name) }
	if order("AlwaysPullImages") > order("PodSecurity") || order("AlwaysDeny") != len(got)-1 {
		t.Errorf("order %q", got)
	}
}

func TestFlagsAreChecked(t *testing.T) {
	for _, tc := range []struct {
		s    Selection
		want string
	}{
		{Selection{Enable: []string{"Nothing"}}, `enable-admission-plugins plugin "Nothing" is unknown`},
		{Selection{Disable: []string{"podsecurity"}}, `disable-admission-plugins plugin "podsecurity" is unknown`},
		{Selection{Enable: []string{"Priority"}, Disable: []string{"Priority"}}, "[Priority] in enable-admission-plugins and disable-admission-plugins overlapped"},
		{Selection{Enable: []string{"JobValidation"}, Disable: []string{"PodGroupProtection"}}, ""},
		{Selection{ConfigFile: "/nowhere"}, "--admission-control-config-file: open /nowhere: no such file"},
	} {
		got := ""
		if err := errors.Join(tc.s.Validate()...); err != nil {
			got = err.Error()
		}
		if !strings.Contains(got, tc.want) || tc.want == "" && got != "" {
			t.Errorf("%+v: %q, want %q", tc.s, got, tc.want)
		}
	}
}

func TestConfigurationFile(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "other.yaml"), []byte("a: b"), 0o600); err != nil {
		t.Fatal(err)
	}
	const head = "apiVersion: apiserver.config.k8s.io/v1\nkind: AdmissionConfiguration\nplugins:\n"
	for doc, want := range map[string]string{ // plugin=configuration, or error
		head + "- {name: PodSecurity, path: other.yaml}":                              "PodSecurity=a: b",
		head + "- {name: PodSecurity, path: " + dir + "/other.yaml}":                  "PodSecurity=a: b",
		head + "- {name: PodNodeSelector, configuration: {c: d}}":                     `PodNodeSelector={"c":"d"}`,
		head + "- {name: Priority}":                                                   "",
		"podNodeSelectorPluginConfig: {}":                                             "PodNodeSelector=podNodeSelectorPluginConfig: {}",
		head + "- {name: PodSecurity, path: none.yaml}":                               "plugins[0].path: configuration of admission plugin PodSecurity: open",
		head + "- {name: PodSecurty}":                                                 `plugins[0].name: admission plugin "PodSecurty" is unknown`,
		head + "- {name: Priority, pth: a}":                                           `unknown field "plugins[0].pth"`,
		head + "- {name: Priority, path: other.yaml}\n- {name: Priority, path: none}": `plugins[1].name: admission plugin "Priority" is configured twice`,
		"anything: else":            "Object 'Kind' is missing",
		"apiVersion: v1\nkind: Pod": `no kind "Pod" is registered`,
	} {
		config, err := parse([]byte(doc), dir)
		var got []string
		for _, name := range Names() {
			r, readErr := config.ConfigFor(name)
			if readErr != nil {
				t.Fatal(readErr)
			}
			if r == nil {
				continue
			}
			data, readErr := io.ReadAll(r)
			if readErr != nil {
				t.Fatal(readErr)
			}
			got = append(got, name+"="+string(data))
		}
		if err != nil {
			got = append(got, fmt.Sprint(err))
		}
		if text := strings.Join(got, "\n"); !strings.Contains(text, want) || want == "" && text != "" {
			t.Errorf("%s\n→ %s, want %s", doc, text, want)
		}
	}
}

// Every plugin that takes a configuration refuses one that has something it does not know.
func TestPluginsReadStrictly(t *testing.T) {
	for _, name := range []string{"ImagePolicyWebhook", "PodSecurity", "PodNodeSelector", "PodTolerationRestriction", "EventRateLimit"} {
		i := slices.IndexFunc(table, func(r row) bool { return r.name == name })
		_, err := table[i].build(&Deps{}, strings.NewReader("nobody: knows"))
		if err == nil || !strings.Contains(err.Error(), "configuration of admission plugin "+name+": ") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestConfiguredTolerationsAreChecked(t *testing.T) {
	_, err := newPodTolerationRestriction(nil, strings.NewReader(`
apiVersion: podtolerationrestriction.admission.k8s.io/v1alpha1
kind: Configuration
default: [{key: a, operator: Sometimes}]
`))
	if want := `default[0].operator: Unsupported value: "Sometimes"`; err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("error %v", err)
	}
}
