package cli

import (
	"bytes"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
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
	root := newTestRoot(new(bytes.Buffer))
	checked := 0
	const top = "../../.."
	err := filepath.WalkDir(top, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && (slices.Contains([]string{"var", "dist", "bin", "testdata"}, d.Name()) || strings.HasPrefix(d.Name(), ".") && path != top):
			return fs.SkipDir
		case d.IsDir() || filepath.Ext(path) != ".md" || d.Name() == "CHANGELOG.md":
			return nil
		}
		text, err := os.ReadFile(path)
		for _, m := range commandSpan.FindAllSubmatch(text, -1) {
			line := quotedWord.ReplaceAllString(string(m[1]), "x")
			if end := commandEnd.FindStringIndex(line); end != nil {
				line = line[:end[0]]
			}
			checked++
			if problem := checkCommand(root, strings.Fields(line)); problem != "" {
				t.Errorf("%s: holdfast %s: %s", path, m[1], problem)
			}
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
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
