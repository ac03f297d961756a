package cli

import (
	"bytes"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"holdfast/internal/control/api"
	"holdfast/internal/control/config"
)

var update = flag.Bool("update", false, "write the golden files again")

// commands returns root and all visible commands below it.
func commands(c *cobra.Command) []*cobra.Command {
	list := []*cobra.Command{c}
	for _, sub := range c.Commands() {
		if !sub.Hidden {
			list = append(list, commands(sub)...)
		}
	}
	return list
}

func newTestRoot(out *bytes.Buffer) *cobra.Command {
	a := &app{ui: newUI(nil, out, out), deps: Deps{
		Version:     api.Version{Version: "v1.2.3"},
		AgentFlags:  func(*pflag.FlagSet) {},
		ConfigFlags: func(*pflag.FlagSet) func() config.Overrides { return nil },
	}}
	root := a.root()
	root.SetOut(out)
	root.InitDefaultHelpCmd()
	return root
}

// The help of every command is as in testdata/help, where a reviewer reads it (go test
// -update rewrites it).
func TestHelp(t *testing.T) {
	var out bytes.Buffer
	want := map[string]bool{}
	for _, c := range commands(newTestRoot(&out)) {
		out.Reset()
		c.InitDefaultHelpFlag()
		if err := c.Help(); err != nil {
			t.Fatal(err)
		}
		file := filepath.Join("testdata", "help", strings.ReplaceAll(c.CommandPath(), " ", "-")+".txt")
		want[file] = true
		if *update {
			if err := os.WriteFile(file, out.Bytes(), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		golden, err := os.ReadFile(file)
		if err != nil {
			t.Error(err)
			continue
		}
		if d := cmp.Diff(string(golden), out.String()); d != "" {
			t.Errorf("%s (-file +now):\n%s", c.CommandPath(), d)
		}
	}
	files, err := filepath.Glob("testdata/help/*.txt")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		if !want[f] {
			t.Errorf("%s belongs to no command", f)
		}
	}
}

// Every command has a sentence, an example, and a help text for each flag.
func TestCommandsExplainThemselves(t *testing.T) {
	for _, c := range commands(newTestRoot(new(bytes.Buffer))) {
		if !c.Runnable() || c.Name() == "help" {
			continue
		}
		if c.Short == "" || !strings.HasSuffix(c.Long, ".") || !strings.Contains(c.Example, "  ") || !strings.Contains(c.Example, c.CommandPath()) && c.HasParent() {
			t.Errorf("%s: short %q, long %q, example %q", c.CommandPath(), c.Short, c.Long, c.Example)
		}
		c.LocalFlags().VisitAll(func(f *pflag.Flag) {
			if f.Usage == "" {
				t.Errorf("%s --%s has no explanation", c.CommandPath(), f.Name)
			}
		})
	}
}

// docs/cli.md has every command with its flags, and the exit codes as the program
// prints them.
func TestReferencePage(t *testing.T) {
	b, err := os.ReadFile("../../../docs/cli.md")
	if err != nil {
		t.Fatal(err)
	}
	page := string(b)
	codes, _, _ := strings.Cut(exitCodesText[strings.Index(exitCodesText, "    0"):], "\n\n")
	for line := range strings.Lines(codes + "\n") {
		code, meaning, _ := strings.Cut(strings.TrimSpace(line), "  ")
		if row := "| " + code + " | " + meaning + " |"; !strings.Contains(page, row) {
			t.Errorf("the page has no row %q", row)
		}
	}
	for _, c := range commands(newTestRoot(new(bytes.Buffer))) {
		if !c.Runnable() || c.HasAvailableSubCommands() && c.Name() != "agent" && c.Name() != "protect" || c.Name() == "help" {
			continue
		}
		if !strings.Contains(page, "`"+c.CommandPath()) {
			t.Errorf("the page has no `%s`", c.CommandPath())
		}
		c.LocalNonPersistentFlags().VisitAll(func(f *pflag.Flag) {
			if f.Name != "help" && !strings.Contains(page, "--"+f.Name) {
				t.Errorf("the page has no --%s", f.Name)
			}
		})
	}
}
