package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/rhysd/actionlint"

	"conform/harness"
	"conform/harness/audit"
)

// root is the root of the repository, seen from this package.
const root = "../.."

// module is the path of this module.
const module = "conform"

// pkg is what `go list -deps -json` says of one package.
type pkg struct {
	ImportPath string
	Dir        string
	GoFiles    []string
	Imports    []string
	Deps       []string
	Module     *struct{ Path string }
}

// packages lists all packages of this module, by path without the module's name.
func packages(t *testing.T) map[string]pkg {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", "list", "-deps", "-json=ImportPath,Dir,GoFiles,Imports,Deps,Module", "./...")
	cmd.Dir, cmd.Stderr = root, os.Stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	own := map[string]pkg{}
	for dec := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p pkg
		if err := dec.Decode(&p); errors.Is(err, io.EOF) {
			return own
		} else if err != nil {
			t.Fatal(err)
		}
		if p.Module != nil && p.Module.Path == module {
			own[strings.TrimPrefix(p.ImportPath, module+"/")] = p
		}
	}
}

// within says whether a package is one of the patterns: "harness/plan" is only it, "harness/..."
// is all below and it.
func within(path string, patterns ...string) bool {
	return slices.ContainsFunc(patterns, func(p string) bool {
		base, tree := strings.CutSuffix(p, "/...")
		return path == base || (tree && strings.HasPrefix(path, base+"/"))
	})
}

// mayImport is the layout: the first pattern that fits a package says which of our own packages
// it may import. A package that fits none is in no place the design knows.
var mayImport = []struct {
	of  string
	may []string
}{
	{"cmd/conform", []string{"suites/...", "faults", "reports", "fixtures", "harness", "harness/audit", "harness/host", "harness/ledger", "harness/plan", "harness/system/...", "harness/worker"}},
	{"suites/...", []string{"suites/...", "faults", "fixtures", "harness", "harness/audit", "harness/ledger", "harness/plan", "harness/system/...", "harness/worker"}},
	{"faults", []string{"harness/system"}},
	{"reports", []string{"harness", "harness/audit", "harness/ledger"}},
	{"fixtures", nil},
	{"harness", []string{"harness/audit", "harness/internal/clock", "harness/ledger", "harness/plan", "harness/system", "harness/worker"}},
	{"harness/ledger/...", []string{"harness/ledger"}},
	{"harness/audit", []string{"harness/ledger"}},
	{"harness/plan", []string{"harness/ledger"}},
	{"harness/system", []string{"harness/ledger"}},
	{"harness/system/systemtest", []string{"harness/ledger", "harness/system"}},
	{"harness/system/...", []string{"fixtures", "harness/internal/...", "harness/ledger", "harness/system", "harness/system/disks", "harness/system/links", "harness/system/process"}},
	{"harness/worker", []string{"harness/internal/clock", "harness/ledger", "harness/system"}},
	{"harness/host", []string{"fixtures", "harness/internal/..."}},
	{"harness/internal/...", []string{"fixtures", "harness/internal/..."}},
}

func TestWhoImportsWhom(t *testing.T) {
	own := packages(t)
	for path, p := range own {
		i := slices.IndexFunc(mayImport, func(r struct {
			of  string
			may []string
		},
		) bool {
			return within(path, r.of)
		})
		if i < 0 {
			t.Errorf("%s is in no place of the layout", path)
			continue
		}
		for _, imported := range p.Imports {
			if name, ours := strings.CutPrefix(imported, module+"/"); ours && !within(name, mayImport[i].may...) {
				t.Errorf("%s imports %s; it may import %s", path, name, strings.Join(mayImport[i].may, ", "))
			}
		}
	}
	// The engine must not reach a suite, a fault, a report or an adapter by any way.
	for _, path := range []string{"harness", "harness/worker", "harness/audit", "harness/ledger", "harness/plan"} {
		for _, dep := range own[path].Deps {
			name, ours := strings.CutPrefix(dep, module+"/")
			if ours && within(name, "suites/...", "faults", "reports", "cmd/...", "harness/host", "harness/system/kafka", "harness/system/rabbitmq",
				"harness/system/rocketmq", "harness/system/postgres", "harness/system/memory", "harness/internal/container", "harness/internal/netproxy", "harness/internal/netns", "harness/internal/disk") {
				t.Errorf("%s depends on %s", path, name)
			}
		}
	}
}

// pure are the packages that a verdict can be recomputed with, anywhere: they take bytes and
// give data.
var pure = []string{"harness/ledger/...", "harness/audit", "harness/plan"}

func TestPure(t *testing.T) {
	forbidden := []string{"os/...", "net/...", "syscall", "log/...", "math/rand", "crypto/rand", "runtime/...", "testing/...", "flag", "golang.org/x/sys/..."}
	for path, p := range packages(t) {
		if !within(path, pure...) {
			continue
		}
		for _, imported := range p.Imports {
			if within(imported, forbidden...) {
				t.Errorf("%s is pure and imports %s", path, imported)
			}
		}
		for _, f := range files(t, p) {
			for _, bad := range uses(f, "time", "Now", "Since", "Until", "Sleep", "After", "AfterFunc", "Tick", "NewTimer", "NewTicker") {
				t.Errorf("%s is pure and takes the time: %s", path, bad)
			}
		}
	}
}

// TestEdges keeps each edge of the world in the packages that are there for it.
func TestEdges(t *testing.T) {
	for path, p := range packages(t) {
		for _, imported := range p.Imports {
			switch {
			case within(imported, "github.com/testcontainers/testcontainers-go/...", "github.com/moby/moby/...", "github.com/docker/docker/...") && !within(path, "harness/internal/..."):
				t.Errorf("%s imports %s: only harness/internal touches the container engine", path, imported)
			case within(imported, "github.com/Shopify/toxiproxy/v2/...") && !within(path, "harness/internal/netproxy"):
				t.Errorf("%s imports %s: only harness/internal/netproxy does", path, imported)
			case within(imported, "github.com/twmb/franz-go/...") && !within(path, "harness/system/kafka"):
				t.Errorf("%s imports %s: only its adapter does", path, imported)
			case within(imported, "github.com/jackc/pgx/v5/...") && !within(path, "harness/system/postgres", "suites/..."):
				t.Errorf("%s imports %s: only its adapter and the reference code do", path, imported)
			case within(imported, "flag", "testing/...", "github.com/spf13/...") && !within(path, "cmd/conform"):
				t.Errorf("%s imports %s: only cmd/conform and tests do", path, imported)
			}
		}
		for _, f := range files(t, p) {
			bad := uses(f, "math/rand/v2", "Int", "IntN", "Int32", "Int32N", "Int64", "Int64N", "Uint32", "Uint32N", "Uint64", "Uint64N", "UintN", "N", "Float32", "Float64", "Perm", "Shuffle", "NormFloat64", "ExpFloat64")
			if !within(path, "cmd/conform") {
				bad = append(bad, uses(f, "os", "Exit", "Getenv", "LookupEnv", "Setenv", "Args")...)
			}
			for _, b := range bad {
				t.Errorf("%s uses %s", path, b)
			}
		}
	}
}

// files parses the files of a package that are no tests.
func files(t *testing.T, p pkg) []*ast.File {
	t.Helper()
	var out []*ast.File
	for _, name := range p.GoFiles {
		f, err := parser.ParseFile(token.NewFileSet(), filepath.Join(p.Dir, name), nil, parser.ParseComments)
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, f)
	}
	return out
}

// uses lists the names of an imported package that a file uses, of those given.
func uses(f *ast.File, path string, names ...string) []string {
	local := ""
	for _, imp := range f.Imports {
		if strings.Trim(imp.Path.Value, `"`) != path {
			continue
		}
		local = strings.TrimSuffix(path, "/v2")
		local = local[strings.LastIndex(local, "/")+1:]
		if imp.Name != nil {
			local = imp.Name.Name
		}
	}
	if local == "" {
		return nil
	}
	var out []string
	ast.Inspect(f, func(n ast.Node) bool {
		if sel, ok := n.(*ast.SelectorExpr); ok {
			if id, ok := sel.X.(*ast.Ident); ok && id.Name == local && slices.Contains(names, sel.Sel.Name) {
				out = append(out, local+"."+sel.Sel.Name)
			}
		}
		return true
	})
	return out
}

func TestEveryPackageSaysWhatItKnows(t *testing.T) {
	for path, p := range packages(t) {
		found := false
		for i, f := range files(t, p) {
			if p.GoFiles[i] == "doc.go" && f.Doc != nil && len(strings.Split(strings.TrimSpace(f.Doc.Text()), "\n")) >= 3 {
				found = true
			}
		}
		if !found {
			t.Errorf("%s has no doc.go that says what it knows", path)
		}
	}
}

func TestTopLevelHoldsNothingElse(t *testing.T) {
	known := []string{
		".ci", ".git", ".github", ".gitignore", ".golangci.yml", "LICENSE", "README.md", "cmd", "faults", "fixtures", "go.mod", "go.sum", "harness", "reports", "suites",
	}
	ignored, err := os.Open(filepath.Join(root, ".gitignore"))
	if err != nil {
		t.Fatal(err)
	}
	defer ignored.Close()
	for sc := bufio.NewScanner(ignored); sc.Scan(); {
		known = append(known, strings.Trim(sc.Text(), "/"))
	}
	entries, err := os.ReadDir(root)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if !slices.ContainsFunc(known, func(k string) bool { ok, err := filepath.Match(k, e.Name()); return ok && err == nil }) {
			t.Errorf("%s has no place at the top of the repository", e.Name())
		}
	}
	for _, want := range []string{".ci/run", ".github/workflows/ci.yml", ".github/workflows/nightly.yml", ".golangci.yml", "LICENSE", "README.md"} {
		if _, err := os.Stat(filepath.Join(root, want)); err != nil {
			t.Error(err)
		}
	}
}

var kebab = regexp.MustCompile(`^[a-z0-9]+(-[a-z0-9]+)*$`)

// TestNamesAreFiles says where to look for a suite or a fault that a report names.
func TestNamesAreFiles(t *testing.T) {
	b := wired()
	exists := func(dir, name string) {
		t.Helper()
		if _, err := os.Stat(filepath.Join(root, dir, name+".go")); err != nil {
			t.Errorf("%s %s is not in a file of its name: %v", dir, name, err)
		}
	}
	for _, s := range b.suites {
		base, _, _ := strings.Cut(s.Name, "@")
		exists("suites", base)
		names := []string{base}
		for _, sc := range s.Scenarios {
			names = append(names, sc.Name)
			for _, arm := range sc.Arms {
				names = append(names, arm.Name)
			}
		}
		for _, n := range names {
			if !kebab.MatchString(n) {
				t.Errorf("%s: %q is not kebab-case", s.Name, n)
			}
		}
	}
	for name, f := range b.faults {
		exists("faults", name)
		if f.Name != name || !kebab.MatchString(name) {
			t.Errorf("fault %q is named %q", name, f.Name)
		}
	}
}

// TestSuitesUseKnownNames checks what suites name as text against the tables of faults and
// anomalies, and that every scenario that is to be passed has a control.
func TestSuitesUseKnownNames(t *testing.T) {
	b := wired()
	for _, s := range b.suites {
		for name := range s.Promise.Rules {
			if _, ok := audit.Lookup(name); !ok {
				t.Errorf("%s: its promise names %q, which is no anomaly", s.Name, name)
			}
		}
		for _, sc := range s.Scenarios {
			full := s.Name + "/" + sc.Name
			count := map[harness.Role]int{}
			for _, arm := range sc.Arms {
				count[arm.Role]++
				if (arm.Role == harness.Control) != (arm.Break != nil) || (arm.Role == harness.Observation) != (arm.Reason != "") {
					t.Errorf("%s: arm %s is a %s: a control has a Break, an observation a Reason, a guarded arm neither", full, arm.Name, arm.Role)
				}
				if arm.Break != nil {
					checkBreak(t, full, *arm.Break)
				}
			}
			if count[harness.Guarded] > 0 && count[harness.Control] == 0 {
				t.Errorf("%s has a guarded arm and no control: it could never pass", full)
			}
			for _, st := range sc.Steps {
				if st.Inject == nil {
					continue
				}
				f, ok := b.faults[st.Inject.Fault]
				if !ok {
					t.Errorf("%s: step %s names fault %q, there are %s", full, st.Name, st.Inject.Fault, strings.Join(slices.Sorted(maps.Keys(b.faults)), ", "))
					continue
				}
				if err := f.CheckParams(st.Inject.Params); err != nil {
					t.Errorf("%s: step %s: %v", full, st.Name, err)
				}
			}
			if sc.LookFor == "" || sc.Summary == "" || sc.Guarded == "" || sc.Cost == 0 {
				t.Errorf("%s does not say all of: its fault, its guard, its cost, how to look for it", full)
			}
		}
	}
}

func checkBreak(t *testing.T, scenario string, b harness.Break) {
	t.Helper()
	a, ok := audit.Lookup(b.Anomaly)
	switch {
	case !ok:
		t.Errorf("%s: %q is no anomaly", scenario, b.Anomaly)
	case a.Place != b.Place:
		t.Errorf("%s: %s stands in the %s, not in the %s", scenario, b.Anomaly, a.Place, b.Place)
	case b.Attribution != "" && !slices.Contains(a.Attributions, b.Attribution):
		t.Errorf("%s: %s is attributed to one of %s, not to %q", scenario, b.Anomaly, strings.Join(a.Attributions, ", "), b.Attribution)
	}
}

// TestSkipsAreErrorsInCI wants every function that skips a test to look at CI, or at a cluster
// that lacks a capability: a test that silently stops to run on a machine that nobody watches is
// a broken test.
func TestSkipsAreErrorsInCI(t *testing.T) {
	err := filepath.WalkDir(root, func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		f, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
		if err != nil {
			return err
		}
		for _, decl := range f.Decls {
			fn, ok := decl.(*ast.FuncDecl)
			if !ok || fn.Body == nil {
				continue
			}
			skips, asks := false, false
			ast.Inspect(fn.Body, func(n ast.Node) bool {
				switch n := n.(type) {
				case *ast.SelectorExpr:
					id, ok := n.X.(*ast.Ident) // rapid's own t is another one: it draws again
					skips = skips || ok && id.Name == "t" && slices.Contains([]string{"Skip", "Skipf", "SkipNow"}, n.Sel.Name)
					asks = asks || n.Sel.Name == "ErrNotApplicable" || n.Sel.Name == "Short" // CI is never short
				case *ast.BasicLit:
					asks = asks || n.Value == `"CI"`
				}
				return true
			})
			if skips && !asks {
				t.Errorf("%s: %s skips without a look at CI", strings.TrimPrefix(path, root+"/"), fn.Name.Name)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestWorkflowsAreValid(t *testing.T) {
	var found strings.Builder
	l, err := actionlint.NewLinter(&found, &actionlint.LinterOptions{WorkingDir: root})
	if err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob(filepath.Join(root, ".github", "workflows", "*.yml"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no workflows: %v", err)
	}
	errs, err := l.LintFiles(files, nil)
	if err != nil {
		t.Fatal(err)
	}
	if len(errs) > 0 {
		t.Error(found.String())
	}
}
