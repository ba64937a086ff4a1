// Command shape measures the code of the product: how many files and functions there are, how long
// they are, which structs have most fields and which packages import most of the others. The tables
// of docs/architecture.md's appendix are its output.
package main

import (
	"cmp"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

const module = "wherry.dev/"

// product are the folders that are measured; what tests need lies elsewhere.
var product = []string{"cmd", "internal", "scheduler", "testenv"}

// listed is how many rows a table has.
const listed = 6

type named struct {
	name string
	n    int
}

type shape struct {
	files, lines, longFiles int
	functions               []int               // their lines
	methods                 map[string]int      // by package and receiver
	fields                  map[string]int      // by package and struct
	packages                map[string]int      // files of each
	imports                 map[string][]string // own packages that each imports
}

func main() {
	root := "."
	if len(os.Args) > 1 {
		root = os.Args[1]
	}
	s := shape{methods: map[string]int{}, fields: map[string]int{}, packages: map[string]int{}, imports: map[string][]string{}}
	for _, dir := range product {
		err := filepath.WalkDir(filepath.Join(root, dir), func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return err
			}
			return s.read(root, path)
		})
		if err != nil && !os.IsNotExist(err) {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	s.print()
}

// read adds a file, unless it is generated.
func (s *shape) read(root, path string) error {
	fset := token.NewFileSet()
	f, err := parser.ParseFile(fset, path, nil, parser.ParseComments)
	if err != nil {
		return err
	}
	if ast.IsGenerated(f) {
		return nil
	}
	pkg, err := filepath.Rel(root, filepath.Dir(path))
	if err != nil {
		return err
	}
	lines := fset.File(f.Pos()).LineCount()
	s.files++
	s.lines += lines
	s.packages[pkg]++
	if lines > 500 {
		s.longFiles++
	}
	for _, i := range f.Imports {
		own, ok := strings.CutPrefix(strings.Trim(i.Path.Value, `"`), module)
		if ok && !slices.Contains(s.imports[pkg], own) {
			s.imports[pkg] = append(s.imports[pkg], own)
		}
	}
	ast.Inspect(f, func(n ast.Node) bool {
		switch x := n.(type) {
		case *ast.FuncDecl:
			s.functions = append(s.functions, fset.Position(x.End()).Line-fset.Position(x.Pos()).Line+1)
			if x.Recv != nil {
				s.methods[pkg+"."+receiver(x.Recv.List[0].Type)]++
			}
		case *ast.TypeSpec:
			if st, ok := x.Type.(*ast.StructType); ok {
				s.fields[pkg+"."+x.Name.Name] = st.Fields.NumFields()
			}
		}
		return true
	})
	return nil
}

func receiver(e ast.Expr) string {
	switch x := e.(type) {
	case *ast.StarExpr:
		return receiver(x.X)
	case *ast.IndexExpr:
		return receiver(x.X)
	case *ast.IndexListExpr:
		return receiver(x.X)
	case *ast.Ident:
		return x.Name
	}
	return "?"
}

func (s *shape) print() {
	slices.Sort(s.functions)
	at := func(percent int) int { return s.functions[(len(s.functions)-1)*percent/100] }
	imports := map[string]int{}
	arrows := 0
	for pkg, own := range s.imports {
		imports[pkg] = len(own)
		arrows += len(own)
	}
	fmt.Printf("- packages %d, files %d (longer than 500 lines: %d), lines %d\n", len(s.packages), s.files, s.longFiles, s.lines)
	fmt.Printf("- functions %d, their lines: median %d, 90 %% %d, 99 %% %d, longest %d\n", len(s.functions), at(50), at(90), at(99), at(100))
	fmt.Printf("- arrows between own packages %d\n", arrows)
	for _, t := range []struct {
		what string
		of   map[string]int
	}{
		{"files of a package", s.packages}, {"methods of a type", s.methods}, {"fields of a struct", s.fields},
		{"own packages that a package imports", imports},
	} {
		fmt.Printf("- most %s: %s\n", t.what, most(t.of))
	}
}

// most lists the greatest, in Markdown.
func most(of map[string]int) string {
	var all []named
	for name, n := range of {
		all = append(all, named{name, n})
	}
	slices.SortFunc(all, func(a, b named) int { return cmp.Or(cmp.Compare(b.n, a.n), strings.Compare(a.name, b.name)) })
	var out []string
	for _, x := range all[:min(listed, len(all))] {
		out = append(out, fmt.Sprintf("`%s` %d", strings.TrimPrefix(x.name, "internal/"), x.n))
	}
	return strings.Join(out, ", ")
}
