package run

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"holdfast/internal/platform/engine"
	"holdfast/internal/platform/engine/docker"
	"holdfast/test/lab/labtest"
)

// patience limits the wait for events that must happen.
const patience = 2 * time.Minute

func TestMain(m *testing.M) {
	code := labtest.Main(m)
	if binary.dir != "" {
		os.RemoveAll(binary.dir)
	}
	os.Exit(code)
}

// binary is the program under test, built by the first test that needs it.
var binary struct {
	once sync.Once
	dir  string
	path string
	err  error
}

func holdfastBinary(t *testing.T) string {
	t.Helper()
	binary.once.Do(func() {
		if binary.dir, binary.err = os.MkdirTemp("", "holdfast-bin-"); binary.err != nil {
			return
		}
		binary.path = filepath.Join(binary.dir, "holdfast")
		binary.err = labtest.Build(context.Background(), "holdfast/cmd/holdfast", binary.path)
	})
	if binary.err != nil {
		t.Fatal(binary.err)
	}
	return binary.path
}

// place is a directory and an engine for commands.
type place struct {
	t      *testing.T
	dir    string
	engine *docker.Engine
}

func newPlace(t *testing.T) *place {
	t.Helper()
	p := &place{t: t, dir: t.TempDir(), engine: labtest.Docker(t)}
	text := fmt.Sprintf("node: place\ndata_dir: %s/data\nrun_dir: %s/run\nengine: {host: %q}\n", p.dir, p.dir, labtest.Engine(t).Host())
	p.write("holdfast.yaml", text)
	t.Cleanup(p.mustBeEmpty)
	return p
}

func (p *place) write(name, text string) {
	p.t.Helper()
	if err := os.WriteFile(filepath.Join(p.dir, name), []byte(text), 0o600); err != nil {
		p.t.Fatal(err)
	}
}

// command is holdfast with these arguments.
func (p *place) command(args ...string) *exec.Cmd {
	p.t.Helper()
	cmd := exec.Command(holdfastBinary(p.t), args...)
	cmd.Dir = p.dir
	cmd.Env = append(os.Environ(), "HOLDFAST_CONFIG="+filepath.Join(p.dir, "holdfast.yaml"), "HOLDFAST_SOCKET="+filepath.Join(p.dir, "none.sock"))
	return cmd
}

// done is the result of a command.
type done struct {
	code int
	out  string
	errs string
}

// holdfast runs a command to its end.
func (p *place) holdfast(stdin string, args ...string) done {
	p.t.Helper()
	cmd := p.command(args...)
	var out, errs bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader([]byte(stdin)), &out, &errs
	if err := cmd.Start(); err != nil {
		p.t.Fatal(err)
	}
	limit := time.AfterFunc(patience, func() { _ = cmd.Process.Kill() })
	defer limit.Stop()
	err := cmd.Wait()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		p.t.Fatal(err)
	}
	return done{cmd.ProcessState.ExitCode(), out.String(), errs.String()}
}

// left returns the remaining objects of jobs in the engine.
func (p *place) left() (containers []engine.Container, networks []engine.Network) {
	p.t.Helper()
	labels := map[string]string{"holdfast.job": ""}
	containers, err := p.engine.List(context.Background(), labels)
	if err != nil {
		p.t.Fatal(err)
	}
	networks, err = p.engine.Networks(context.Background(), labels)
	if err != nil {
		p.t.Fatal(err)
	}
	return containers, networks
}

func (p *place) mustBeEmpty() {
	if c, n := p.left(); len(c)+len(n) > 0 {
		p.t.Errorf("left behind: %+v %+v", c, n)
	}
}
