package fleet

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"holdfast/bench/rig"
)

// clone starts an agent on a copy of the machine's id and lease, with its own addresses
// and run directory, and returns when the agent has ended. It has to refuse to start,
// because the machine's agent is alive.
func (x *experiment) clone(ctx context.Context, m *node) error {
	dir := filepath.Join(x.scratch, string(m.id)+"-clone")
	defer os.RemoveAll(dir)
	data := filepath.Join(dir, "data")
	if err := os.MkdirAll(data, 0o700); err != nil {
		return err
	}
	for _, name := range []string{"node", "lease"} { // the agent is replacing other files meanwhile
		text, err := os.ReadFile(filepath.Join(m.dir, "data", name))
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(data, name), text, 0o600); err != nil {
			return err
		}
	}
	n := strings.TrimPrefix(string(m.id), "n")
	argv := append([]string{x.o.Program, "agent", "--config", x.config(m)},
		"--data-dir", data, "--run-dir", filepath.Join(dir, "run"), "--socket", filepath.Join(dir, "s"),
		"--gateway", "127.0.2."+n+":7070", "--fleet", "127.0.2."+n+":7072")
	log := filepath.Join(x.dir, string(m.id)+"-clone.log")
	if err := os.RemoveAll(log); err != nil { // of an earlier clone
		return err
	}
	p, err := rig.Start("clone of "+string(m.id), argv, log, rig.Nice, false)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, rig.Patience)
	defer cancel()
	select {
	case <-p.Ended:
	case <-ctx.Done():
	}
	p.Kill()
	if want := "another agent of node " + string(m.id); !strings.Contains(p.Tail(), want) {
		return fmt.Errorf("%s did not end with %q\n%s", p.Name, want, p.Tail())
	}
	return nil
}

// config is the file with the configuration of a machine's agent.
func (x *experiment) config(m *node) string { return filepath.Join(x.scratch, string(m.id)+".yaml") }
