package docs

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var (
	// command is a go test command with a pattern, up to the end of its line or of its code span.
	command = regexp.MustCompile("\\bgo test ([^`\n#]*-(?:run|bench)[ =][^`\n#]*)")
	// argument is an argument of a command.
	argument = regexp.MustCompile(`'[^']*'|"[^"]*"|\S+`)
	// packagePath ends before the quotation mark of a string in a Go file.
	packagePath = regexp.MustCompile(`^[\w./-]+`)
	// testName is the declaration of a test or a benchmark.
	testName = regexp.MustCompile(`(?m)^func ((?:Test|Benchmark)\w+)\(`)
	// word is an identifier or a word of a comment.
	word = regexp.MustCompile(`\w+`)
	// identifier is an exported identifier with its package or type, in a code span.
	identifier = regexp.MustCompile("`\\w+\\.([A-Z]\\w+)(?:\\(\\))?`")
)

// testCommand is a parsed go test command.
type testCommand struct {
	dir      string   // of -C
	patterns []string // one for each alternative of -run and -bench, without subtests
	packages []string
}

// parseCommand parses the arguments of go test.
func parseCommand(args string) testCommand {
	var c testCommand
	fields := argument.FindAllString(args, -1)
	for i, f := range fields {
		name, value, _ := strings.Cut(f, "=")
		if value == "" && i+1 < len(fields) {
			value = fields[i+1]
		}
		switch {
		case name == "-C":
			c.dir = value
		case name == "-run" || name == "-bench":
			tests, _, _ := strings.Cut(strings.Trim(value, `'"`), "/")
			for p := range strings.SplitSeq(strings.ReplaceAll(tests, `\|`, "|"), "|") { // in a table, | is \|
				if p != "^$" {
					c.patterns = append(c.patterns, p)
				}
			}
		case f == "." || strings.HasPrefix(f, "./"):
			c.packages = append(c.packages, strings.TrimRight(packagePath.FindString(f), "."))
		}
	}
	return c
}

// tests returns the names of the tests and benchmarks of the packages.
func (c testCommand) tests(t *testing.T) (all []string) {
	t.Helper()
	for _, p := range c.packages {
		root := filepath.Join(top, c.dir, p)
		err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || !strings.HasSuffix(path, "_test.go") || filepath.Dir(path) != root && !strings.HasSuffix(p, "/") {
				return err
			}
			text, err := os.ReadFile(path)
			for _, m := range testName.FindAllSubmatch(text, -1) {
				all = append(all, string(m[1]))
			}
			return err
		})
		if err != nil {
			t.Error(err)
		}
	}
	return all
}

func TestParseCommand(t *testing.T) {
	c := parseCommand(`-C test/quic -run 'A/x$|B\|C' -v ./internal/... ./test/deb -long -bench=D`)
	if c.dir != "test/quic" || !slices.Equal(c.patterns, []string{"A", "D"}) || !slices.Equal(c.packages, []string{"./internal/", "./test/deb"}) {
		t.Errorf("%+v", c)
	}
	if c := parseCommand(`-run '^$' -bench 'B\|C' .`); !slices.Equal(c.patterns, []string{"B", "C"}) {
		t.Errorf("%+v", c)
	}
}

// Each go test command in pages, scripts and comments matches a test of its packages with each of
// its patterns. go test itself passes if a pattern matches none.
func TestCommandsRunTests(t *testing.T) {
	checked := 0
	for name, text := range files(t, ".md", ".sh", ".go", "Makefile") {
		if name == "CHANGELOG.md" || name == "test/docs/commands_test.go" {
			continue
		}
		for _, m := range command.FindAllStringSubmatch(text, -1) {
			c := parseCommand(m[1])
			if len(c.packages) == 0 {
				continue // the packages are a variable of a script
			}
			tests := c.tests(t)
			for _, p := range c.patterns {
				checked++
				r, err := regexp.Compile(p)
				if err != nil {
					t.Errorf("%s: %s: %v", name, m[0], err)
				} else if !slices.ContainsFunc(tests, r.MatchString) {
					t.Errorf("%s: %s: no test matches %s", name, m[0], p)
				}
			}
		}
	}
	if checked < 60 {
		t.Errorf("only %d patterns were checked", checked)
	}
}

// The identifiers that pages name, such as `session.Manager`, are in the Go files.
func TestPagesNameExistingIdentifiers(t *testing.T) {
	words, checked := map[string]bool{}, 0
	for _, text := range files(t, ".go") {
		for _, w := range word.FindAllString(text, -1) {
			words[w] = true
		}
	}
	for name, text := range pages(t) {
		if name == "CHANGELOG.md" {
			continue
		}
		for _, m := range identifier.FindAllStringSubmatch(text, -1) {
			checked++
			if !words[m[1]] {
				t.Errorf("%s names %s, which no Go file has", name, m[0])
			}
		}
	}
	if checked < 20 {
		t.Errorf("only %d identifiers were checked", checked)
	}
}
