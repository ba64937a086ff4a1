package layers

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// link is a Markdown link to a file of the project; its text may be code.
var link = regexp.MustCompile("\\[(`?)([^\\]`]+)`?\\]\\(([^)#:]+)(#[^)]*)?\\)")

// identifier is a name that Go code declares: of a function, a type, or Type.Method.
var identifier = regexp.MustCompile(`^[A-Za-z_]\w*(\.[A-Za-z_]\w*)?$`)

// Every relative link in the documents leads to a file, and a link whose text is a name in code
// leads to a Go file that declares that name.
func TestLinksOfTheDocumentsAreTrue(t *testing.T) {
	links, names := 0, 0
	for _, doc := range documents(t) {
		text, err := os.ReadFile(doc)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range link.FindAllStringSubmatch(string(text), -1) {
			code, name, target := m[1] != "", m[2], filepath.Join(filepath.Dir(doc), m[3])
			links++
			if _, err := os.Stat(target); err != nil {
				t.Errorf("%s: the link to %s: %v", doc, m[3], err)
				continue
			}
			if !code || filepath.Ext(target) != ".go" || !identifier.MatchString(name) || name == filepath.Base(target) {
				continue
			}
			names++
			if !declares(t, target, name) {
				t.Errorf("%s: %s does not declare %s", doc, m[3], name)
			}
		}
	}
	if links < 20 || names < 10 {
		t.Errorf("only %d links and %d names were looked at", links, names)
	}
}

// documents returns the Markdown files of the project.
func documents(t *testing.T) []string {
	t.Helper()
	found := []string{"../../README.md"}
	err := filepath.WalkDir("../../docs", func(path string, _ fs.DirEntry, err error) error {
		if strings.HasSuffix(path, ".md") {
			found = append(found, path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// declares reports whether a Go file declares a function, a type, or (Type.Method) a method.
func declares(t *testing.T, file, name string) bool {
	t.Helper()
	parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	receiver, method, isMethod := strings.Cut(name, ".")
	for _, d := range parsed.Decls {
		switch d := d.(type) {
		case *ast.FuncDecl:
			if isMethod && d.Name.Name == method && receiverOf(d) == receiver || !isMethod && d.Recv == nil && d.Name.Name == name {
				return true
			}
		case *ast.GenDecl:
			for _, s := range d.Specs {
				if s, ok := s.(*ast.TypeSpec); ok && !isMethod && s.Name.Name == name {
					return true
				}
			}
		}
	}
	return false
}

// receiverOf returns the name of a method's type, "" for a function.
func receiverOf(f *ast.FuncDecl) string {
	if f.Recv == nil {
		return ""
	}
	expr := f.Recv.List[0].Type
	if star, ok := expr.(*ast.StarExpr); ok {
		expr = star.X
	}
	if generic, ok := expr.(*ast.IndexExpr); ok {
		expr = generic.X
	}
	if id, ok := expr.(*ast.Ident); ok {
		return id.Name
	}
	return ""
}
