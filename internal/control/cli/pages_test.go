package cli

import (
	"bytes"
	"io/fs"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

// A page names a command in a code span that begins with holdfast, or in a line of a code block
// that does.
var (
	commandSpan = regexp.MustCompile("(?m)(?:`|^ *(?:\\$ |# |sudo )*)holdfast ([a-z][^`\n]*)")
	commandEnd  = regexp.MustCompile(`[|;&<>#…\\]|\s--\s|\s--$`)
	quotedWord  = regexp.MustCompile(`'[^']*'|"[^"]*"|\[[^\]]*\]`)
)

// The commands that pages name exist, with their flags.
func TestPagesNameExistingCommands(t *testing.T) {
	root, top := newTestRoot(new(bytes.Buffer)), os.DirFS("../../..")
	checked := 0
	for _, pattern := range []string{"README.md", "CONTRIBUTING.md", "docs/*.md", "docs/*/*.md", "examples/*/*.md"} {
		pages, err := fs.Glob(top, pattern)
		if err != nil || len(pages) == 0 {
			t.Errorf("%s: %v, %v", pattern, pages, err)
		}
		for _, page := range pages {
			text, err := fs.ReadFile(top, page)
			if err != nil {
				t.Fatal(err)
			}
			for _, m := range commandSpan.FindAllSubmatch(text, -1) {
				line := quotedWord.ReplaceAllString(string(m[1]), "x")
				if end := commandEnd.FindStringIndex(line); end != nil {
					line = line[:end[0]]
				}
				checked++
				if problem := checkCommand(root, strings.Fields(line)); problem != "" {
					t.Errorf("%s: holdfast %s: %s", page, m[1], problem)
				}
			}
		}
	}
	if checked < 300 {
		t.Errorf("only %d commands were checked", checked)
	}
}

// checkCommand says what is wrong with a command, or "".
func checkCommand(root *cobra.Command, args []string) string {
	c, rest, err := root.Find(args)
	if err != nil {
		return err.Error()
	}
	// The flags of agent are registered by the program, those of bench by another one.
	if c.Name() == "agent" || c.Name() == "bench" {
		rest = nil
	}
	for _, a := range rest {
		name, _, _ := strings.Cut(a, "=")
		name, long := strings.CutPrefix(name, "--")
		if long && name != "help" && c.Flags().Lookup(name) == nil && c.InheritedFlags().Lookup(name) == nil {
			return "no flag --" + name
		}
	}
	if len(rest) > 0 && c.HasAvailableSubCommands() && !c.Runnable() && !strings.HasPrefix(rest[0], "-") {
		return "no command " + rest[0]
	}
	return ""
}
