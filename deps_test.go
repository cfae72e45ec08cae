package caisson

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// packages says who may import whom inside the module. Do not change it to
// make a build pass: a new arrow needs a reason, here and in docs/rationale.md.
// A line is "package: what its code may import [; what its tests may import
// besides]". Every package has a line. testRules apply to all tests.
const packages = `
# What everybody may use stands on nothing.
api:
internal/reexec:
internal/host:             ; internal/host internal/reexec internal/testenv

# Pure decisions.
internal/policy:           api

# The protocol with the guest, and the program that speaks it inside. That
# program shares no other code with the host.
internal/guest:            api
internal/guest/process:
internal/guest/filesystem:
internal/guest/process/processconnect:       internal/guest/process
internal/guest/filesystem/filesystemconnect: internal/guest/filesystem
internal/guest/program:    api
cmd/caisson-guest:         internal/guest internal/guest/process internal/guest/filesystem internal/guest/process/processconnect internal/guest/filesystem/filesystemconnect

# The jailed child that reads what guests send (I15), and the one writer of
# what they made (I6): it sees what the child passed on, never the guest.
internal/guest/attach:     api host reexec internal/guest internal/guest/process internal/guest/filesystem internal/guest/process/processconnect internal/guest/filesystem/filesystemconnect
internal/export:           internal/guest/attach
internal/workspace:        api host internal/guest/attach internal/export

# The way out, and images, which come in through it.
internal/egress:           internal/policy
internal/image:            api host reexec internal/egress

# Isolation levels know the contract and the host, not who uses them.
internal/driver:           api
internal/driver/drivertest: api host internal/driver internal/testenv
internal/driver/gvisor:    api host reexec internal/driver ; internal/driver/drivertest internal/guest internal/guest/program internal/image

# The owner of sandboxes, the place where all is put together, the commands.
internal/sandbox:          api host internal/policy internal/driver internal/guest internal/guest/attach internal/export internal/workspace internal/egress internal/image
internal/daemon:           api host internal/policy internal/egress internal/driver internal/driver/gvisor internal/guest/attach internal/guest/program internal/image internal/sandbox internal/workspace
internal/cli:              api internal/daemon
cmd/caisson:               host reexec internal/cli internal/daemon

# Not part of the product.
internal/testenv:          host
demo:
bench:
tests/run:                 ; internal/daemon internal/guest/program
tests/script:              ; internal/cli internal/guest/program
`

// testRules are what tests of every package may import.
const testRules = `api host reexec internal/testenv`

// short spells out the names that the table uses often.
var short = map[string]string{"host": "internal/host", "reexec": "internal/reexec"}

// outside says which packages may import a module of others. A module without
// a line may be imported by nobody.
const outside = `
# The sandbox kernel and its network stack: one place each.
gvisor.dev/gvisor:                   internal/driver/gvisor internal/egress
github.com/opencontainers/runtime-spec: internal/driver/gvisor
# Talking to Linux.
golang.org/x/sys:                    internal/host internal/driver/gvisor internal/driver/drivertest internal/guest/attach internal/testenv cmd/caisson-guest
golang.org/x/net:                    internal/host internal/guest/attach
# The guest protocol.
connectrpc.com/connect:              internal/guest/attach internal/guest/process/processconnect internal/guest/filesystem/filesystemconnect cmd/caisson-guest
google.golang.org/protobuf:          internal/guest/attach internal/guest/process internal/guest/filesystem cmd/caisson-guest
# Images, which arrive compressed and packed in ways of others.
github.com/google/go-containerregistry: internal/image
github.com/erofs/go-erofs:           internal/image
github.com/klauspost/compress:       internal/image
# Files that people write.
go.yaml.in/yaml/v3:                  internal/policy
# The terminal.
github.com/alecthomas/kong:          internal/cli
github.com/schollz/progressbar/v3:   internal/cli
golang.org/x/term:                   internal/cli
github.com/creack/pty:               cmd/caisson-guest
# Tests.
github.com/elastic/go-seccomp-bpf:   tests
github.com/google/go-cmp:            tests
github.com/rogpeppe/go-internal:     tests
`

// minGo is the first version whose os.Root cannot be left through a link with
// a slash behind it (CVE-2026-39822).
const minGo = "1.26.5"

const module = "caisson.dev/caisson"

// source is one Go file, parsed by us: a test that asked the go command would
// be cached and stay green when the tree changes.
type source struct {
	pkg     string // directory below the module's root
	name    string
	test    bool
	ast     *ast.File
	imports []string
}

func readSources(t *testing.T) (all []source) {
	t.Helper()
	fset := token.NewFileSet()
	err := filepath.WalkDir(".", func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && p != "." && (strings.HasPrefix(d.Name(), ".") || d.Name() == "testdata") {
			return filepath.SkipDir
		}
		if !strings.HasSuffix(p, ".go") {
			return nil
		}
		f, err := parser.ParseFile(fset, p, nil, parser.ImportsOnly|parser.ParseComments)
		if err != nil {
			return err
		}
		s := source{pkg: path.Dir(p), name: p, test: strings.HasSuffix(p, "_test.go"), ast: f}
		for _, i := range f.Imports {
			name, err := strconv.Unquote(i.Path.Value)
			if err != nil {
				return err
			}
			s.imports = append(s.imports, name)
		}
		all = append(all, s)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// table reads "name: words [; words]" lines.
func table(t *testing.T, text string) (code, tests map[string][]string) {
	t.Helper()
	code, tests = map[string][]string{}, map[string][]string{}
	for line := range strings.Lines(text) {
		line, _, _ = strings.Cut(line, "#")
		name, rest, ok := strings.Cut(strings.TrimSpace(line), ":")
		if !ok {
			continue
		}
		if _, twice := code[name]; twice {
			t.Errorf("two lines for %q", name)
		}
		a, b, _ := strings.Cut(rest, ";")
		code[name], tests[name] = words(a), words(b)
	}
	return code, tests
}

func words(s string) (all []string) {
	for _, w := range strings.Fields(s) {
		if long, ok := short[w]; ok {
			w = long
		}
		all = append(all, w)
	}
	return all
}

func TestImportsInsideTheModule(t *testing.T) {
	code, tests := table(t, packages)
	always := words(testRules)
	seen := map[string]bool{}
	for _, s := range readSources(t) {
		if s.pkg == "." {
			continue
		}
		seen[s.pkg] = true
		allowed, ok := code[s.pkg]
		if !ok {
			t.Errorf("%s: package %s is not in the table of deps_test.go", s.name, s.pkg)
			continue
		}
		if s.test {
			allowed = slices.Concat(allowed, tests[s.pkg], always, []string{s.pkg})
		}
		for _, name := range s.imports {
			inside, ok := strings.CutPrefix(name, module+"/")
			if ok && !slices.Contains(allowed, inside) {
				t.Errorf("%s: %s may not import %s", s.name, s.pkg, inside)
			}
		}
	}
	for name := range code {
		if !seen[name] {
			t.Logf("the table has a line for %s, which is not there", name)
		}
	}
}

func TestImportsFromOutside(t *testing.T) {
	fences, _ := table(t, outside)
	for _, s := range readSources(t) {
		for _, name := range s.imports {
			first, _, _ := strings.Cut(name, "/")
			if name == "C" {
				t.Errorf("%s: uses cgo", s.name)
			}
			if !strings.Contains(first, ".") || first+"/caisson" == module {
				continue // the standard library, and ourselves
			}
			mod := moduleOf(fences, name)
			allowed := fences[mod]
			switch {
			case mod == "":
				t.Errorf("%s: no line in deps_test.go for %q", s.name, name)
			case slices.Contains(allowed, s.pkg), s.test && slices.Contains(allowed, "tests"):
			default:
				t.Errorf("%s: %s may not import %s", s.name, s.pkg, mod)
			}
		}
	}
}

func moduleOf(fences map[string][]string, name string) string {
	for mod := range fences {
		if name == mod || strings.HasPrefix(name, mod+"/") {
			return mod
		}
	}
	return ""
}

// badNames say nothing about what a package is for, so everything ends there.
var badNames = []string{"common", "util", "utils", "types", "models", "helpers", "misc", "base"}

func TestPackages(t *testing.T) {
	comments := map[string][]string{}
	names := map[string]string{}
	for _, s := range readSources(t) {
		if s.test && !strings.HasSuffix(s.ast.Name.Name, "_test") && names[s.pkg] == "" {
			names[s.pkg] = s.ast.Name.Name // a package of tests only
		}
		if !s.test {
			names[s.pkg] = s.ast.Name.Name
		}
		if s.ast.Doc != nil && strings.TrimSpace(s.ast.Doc.Text()) != "" {
			comments[s.pkg] = append(comments[s.pkg], s.name)
		}
		if slices.Contains(badNames, s.ast.Name.Name) {
			t.Errorf("%s: %q is no name for a package", s.name, s.ast.Name.Name)
		}
		if slices.Contains(s.imports, "unsafe") && !regexp.MustCompile(`_unsafe(_test)?\.go$`).MatchString(s.name) && !ast.IsGenerated(s.ast) {
			t.Errorf("%s: unsafe belongs into a file called *_unsafe.go", s.name)
		}
	}
	for dir, name := range names {
		if n := len(comments[dir]); n != 1 {
			t.Errorf("package %s in %s has %d package comments %v, want one", name, dir, n, comments[dir])
		}
	}
}

func TestGoVersion(t *testing.T) {
	text, err := os.ReadFile("go.mod")
	if err != nil {
		t.Fatal(err)
	}
	m := regexp.MustCompile(`(?m)^go (\d+)\.(\d+)(?:\.(\d+))?$`).FindStringSubmatch(string(text))
	if m == nil {
		t.Fatal("go.mod has no go line")
	}
	if got := m[0][3:]; versionLess(t, got, minGo) {
		t.Errorf("go.mod allows Go %s, want at least %s", got, minGo)
	}
}

func versionLess(t *testing.T, a, b string) bool {
	t.Helper()
	number := func(v string) (n int) {
		for i, part := range append(strings.Split(v, "."), "0", "0")[:3] {
			k, err := strconv.Atoi(part)
			if err != nil {
				t.Fatal(fmt.Errorf("bad version %q part %d: %w", v, i, err))
			}
			n = n*1000 + k
		}
		return n
	}
	return number(a) < number(b)
}
