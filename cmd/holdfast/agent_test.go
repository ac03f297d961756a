package main

import (
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/pflag"

	"holdfast/internal/control/cli"
)

// Every flag that overrides the file is a flag of the agent, and `config show` names it as
// the source of the value.
func TestConfigShowNamesTheFlag(t *testing.T) {
	agent, flags := pflag.NewFlagSet("agent", pflag.ContinueOnError), pflag.NewFlagSet("config", pflag.ContinueOnError)
	agentFlags(agent)
	configFlags(flags)
	n := 0
	flags.VisitAll(func(f *pflag.Flag) {
		n++
		if agent.Lookup(f.Name) == nil {
			t.Errorf("the agent has no --%s", f.Name)
		}
		var out, errs strings.Builder
		args := []string{"config", "show", "/dev/null", "--changed", "--" + f.Name, "x"}
		if code := cli.Main(t.Context(), args, strings.NewReader(""), &out, &errs, deps()); code != 0 {
			t.Errorf("--%s: exit code %d: %s", f.Name, code, &errs)
		}
		if !strings.HasSuffix(strings.Join(strings.Fields(out.String()), " "), " x flag --"+f.Name) {
			t.Errorf("--%s is not named:\n%s", f.Name, &out)
		}
	})
	if n < 10 {
		t.Errorf("only %d flags", n)
	}
	if code := cli.Main(t.Context(), []string{"config", "check", "/dev/null"}, strings.NewReader(""), io.Discard, io.Discard, deps()); code != cli.ExitUsage {
		t.Errorf("a configuration without a template: exit code %d", code)
	}
}

// The socket is that of the configuration. One that cannot be used names none.
func TestHostSocket(t *testing.T) {
	for text, want := range map[string]string{
		"api: {socket: /run/other.sock}": "/run/other.sock",
		"{}":                             "/run/holdfast/holdfast.sock",
		"api: [":                         "",
	} {
		file := filepath.Join(t.TempDir(), "holdfast.yaml")
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		t.Setenv(configEnv, file)
		if got := hostSocket(); got != want {
			t.Errorf("%s: %q, want %q", text, got, want)
		}
	}
}
