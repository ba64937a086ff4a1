package config

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/pflag"
	kubeletconfig "k8s.io/kubelet/config/v1beta1"
)

// readElsewhere are fields that take effect before the kubelet is built: other defaults derive from
// them, they are refused, or every one of them is named.
var readElsewhere = []string{"Logging", "MergeDefaultEvictionSettings", "NodeStatusUpdateFrequency", "RunOnce", "FeatureGates"}

// notReading are the files that set, check or name fields without giving them an effect.
var notReading = []string{"config.go", "defaults.go", "flags.go", "load.go", "validate.go", "unimplemented.go"}

// selected returns the names after a dot in the code that acts on the configuration.
func selected(t *testing.T) map[string]bool {
	t.Helper()
	var files []string
	for _, pattern := range []string{"*.go", "../*.go", "../shutdown/*.go", "../host/*.go", "../podcgroups/*.go", "../../../cmd/wherry/kubelet*.go"} {
		found, err := filepath.Glob(pattern)
		if err != nil || len(found) == 0 {
			t.Fatalf("%s: %v", pattern, err)
		}
		files = append(files, found...)
	}
	names := map[string]bool{}
	for _, file := range files {
		parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		for _, decl := range parsed.Decls {
			f, isFunc := decl.(*ast.FuncDecl)
			settings := slices.Contains(notReading, file) && (!isFunc || !slices.Contains([]string{"Reserved", "PodLimit", "EvictionLimits"}, f.Name.Name))
			if settings || strings.HasSuffix(file, "_test.go") {
				continue
			}
			ast.Inspect(decl, func(n ast.Node) bool {
				if s, ok := n.(*ast.SelectorExpr); ok {
					names[s.Sel.Name] = true
				}
				return true
			})
		}
	}
	return names
}

// TestEveryFieldHasAnEffectOrIsNamed walks KubeletConfiguration: a field that nothing here reads
// must be in unimplementedFields, so that whoever sets it is warned; a field that is read must not
// be.
func TestEveryFieldHasAnEffectOrIsNamed(t *testing.T) {
	read := selected(t)
	var walk func(typ reflect.Type, path string)
	walk = func(typ reflect.Type, path string) {
		for f := range typ.Fields() {
			tag, _, _ := strings.Cut(f.Tag.Get("json"), ",")
			if tag == "" || slices.Contains(readElsewhere, f.Name) { // TypeMeta
				continue
			}
			_, named := unimplementedFields[tag]
			if !named && !read[f.Name] {
				t.Errorf("%s%s is read by nobody, and nobody says so", path, tag)
			}
			if named && read[f.Name] {
				t.Errorf("%s%s has an effect, and a warning denies it", path, tag)
			}
			sub := f.Type
			if sub.Kind() == reflect.Pointer {
				sub = sub.Elem()
			}
			if sub.Kind() == reflect.Struct && sub.PkgPath() == reflect.TypeFor[kubeletconfig.KubeletConfiguration]().PkgPath() && !named {
				walk(sub, path+tag+".")
			}
		}
	}
	walk(reflect.TypeFor[kubeletconfig.KubeletConfiguration](), "")
}

// TestHelpOfFlagsSaysWhatHasNoEffect: --help must not promise what a warning denies.
func TestHelpOfFlagsSaysWhatHasNoEffect(t *testing.T) {
	cfg := Default()
	fs := pflag.NewFlagSet("kubelet", pflag.ContinueOnError)
	cfg.AddFlags(fs)
	denied := map[string]bool{}
	for _, flag := range unimplementedFields {
		denied[strings.TrimPrefix(flag, "--")] = true
	}
	for name := range denied {
		if name != "" && !slices.Contains(ignoredFlags, name) && fs.Lookup(name) == nil {
			t.Errorf("--%s is named, and is no flag", name)
		}
	}
	fs.VisitAll(func(f *pflag.Flag) {
		admits := f.Usage == noEffect || strings.HasPrefix(f.Usage, "accepted;") && f.Name != "feature-gates" && f.Name != "node-status-update-frequency"
		if !slices.Contains(ignoredFlags, f.Name) && admits != denied[f.Name] {
			t.Errorf("--%s: the warning says %v, its help %q", f.Name, denied[f.Name], f.Usage)
		}
	})
}
