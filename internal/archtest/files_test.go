package archtest

import (
	"bytes"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
)

// maxLines is the limit of lines in a source file.
const maxLines = 600

// mayExec lists the packages that may start other programs. All others use an interface of the
// kernel or an API.
var mayExec = []string{"internal/platform/child", "internal/sessions/hook", "internal/sessions/kill/killtest", "test/lab/...", "internal/platform/linux/deathsig", "test/vm", "demo/...", "test/...", "packaging/dev/testsum", "internal/agent/handoff", "internal/platform/runsc", "internal/hosts/protect", "internal/hosts/protect/protecttest", "internal/hosts/protect/supervise", "bench/...",
	// iptables has no other interface.
	"internal/platform/linux/vethnet",
	// AppArmor's parser has no other interface.
	"internal/platform/engine/containerd",
	// A child in a control group of its own.
	"internal/hosts/doctor/probe", "internal/hosts/doctor/drill",
	// A kubeconfig's credential plugin, and the user's command that deletes a machine.
	"internal/hosts/kube", "internal/hosts/kube/replace",
	// `holdfast bench` becomes holdfast-bench.
	"cmd/holdfast", "cmd/holdfast-bench"}

// source is one Go file of this module.
type source struct {
	path string // below the module's root
	text []byte
	ast  *ast.File
}

func (s source) dir() string {
	if d := filepath.Dir(s.path); d != "." {
		return d
	}
	return ""
}

func (s source) isTest() bool { return strings.HasSuffix(s.path, "_test.go") }

// sources are all Go files of the module that are not generated.
func sources(t *testing.T) []source {
	t.Helper()
	out, err := parsed()
	if err != nil {
		t.Fatal(err)
	}
	if len(out) < 10 {
		t.Fatalf("only %d files were found", len(out))
	}
	return out
}

// parsed calls parse once.
var parsed = sync.OnceValues(parse)

func parse() ([]source, error) {
	root := os.DirFS("../..")
	var out []source
	err := fs.WalkDir(root, ".", func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if name := d.Name(); d.IsDir() && path != "." && (strings.HasPrefix(name, ".") || name == "testdata" || name == "var") {
			return fs.SkipDir
		}
		if d.IsDir() || !strings.HasSuffix(path, ".go") {
			return nil
		}
		text, err := fs.ReadFile(root, path)
		if err != nil {
			return err
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, text, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		if !ast.IsGenerated(file) {
			out = append(out, source{path, text, file})
		}
		return nil
	})
	return out, err
}

func TestFilesAreSmall(t *testing.T) {
	for _, s := range sources(t) {
		if n := bytes.Count(s.text, []byte("\n")); n > maxLines {
			t.Errorf("%s has %d lines, at most %d are allowed", s.path, n, maxLines)
		}
	}
}

func TestPackagesHaveAComment(t *testing.T) {
	commented := map[string]bool{}
	for _, s := range sources(t) {
		if s.isTest() {
			continue
		}
		commented[s.dir()] = commented[s.dir()] || s.ast.Doc != nil
	}
	for dir, ok := range commented {
		if !ok {
			t.Errorf("package in %q has no package comment", dir)
		}
	}
}

func TestNothingHappensAtImport(t *testing.T) {
	for _, s := range sources(t) {
		for _, d := range s.ast.Decls {
			if f, ok := d.(*ast.FuncDecl); ok && f.Recv == nil && f.Name.Name == "init" {
				t.Errorf("%s has an init function", s.path)
			}
		}
	}
}

func TestProgramsAreStartedInFewPlaces(t *testing.T) {
	for _, s := range sources(t) {
		if s.isTest() || slices.ContainsFunc(mayExec, func(p string) bool { return within(s.dir(), p) }) {
			continue
		}
		for _, i := range s.ast.Imports {
			if i.Path.Value == `"os/exec"` {
				t.Errorf("%s imports os/exec", s.path)
			}
		}
	}
}

func TestMainIsShort(t *testing.T) {
	mains := map[string]int{"cmd/holdfast/main.go": 0, "cmd/holdfast-bench/main.go": 0}
	for _, s := range sources(t) {
		if _, ok := mains[s.path]; ok {
			mains[s.path] = bytes.Count(s.text, []byte("\n"))
		}
	}
	for path, n := range mains {
		if n == 0 || n >= 40 {
			t.Errorf("%s has %d lines, 1 to 39 are allowed", path, n)
		}
	}
}

// No package of the product compiles an expression when a program starts: each command and
// each helper of the agent would pay for all of them, 1.5 ms of CPU time and half a megabyte.
func TestExpressionsCompileAtFirstUse(t *testing.T) {
	for _, s := range sources(t) {
		if s.isTest() || s.ast.Name.Name == "main" || !strings.HasPrefix(s.path, "internal/") {
			continue
		}
		ast.Inspect(s.ast, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.FuncDecl, *ast.FuncLit: // runs later
				return false
			case *ast.SelectorExpr:
				if pkg, ok := n.X.(*ast.Ident); ok && pkg.Name == "regexp" && strings.HasPrefix(n.Sel.Name, "MustCompile") {
					t.Errorf("%s compiles an expression when a program starts; use sync.OnceValue", s.path)
				}
			}
			return true
		})
	}
}
