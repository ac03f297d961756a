package pull

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"holdfast/internal/hosts/spinup"
	"holdfast/test/lab"
	"holdfast/test/lab/labtest"
	"holdfast/test/lab/registry"
	"holdfast/test/spinup/scene"
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

func holdfastBinary(t testing.TB) string {
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

// open starts a stage for one test.
func open(t testing.TB, o lab.Options) *scene.Stage {
	t.Helper()
	if testing.Short() {
		t.Skip("-short: private engines and registries take their time, and root")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*patience)
	defer cancel()
	stage, err := scene.Open(ctx, labtest.Options(o))
	t.Cleanup(func() {
		if err := stage.Close(); err != nil {
			t.Error(err)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	return stage
}

// user runs commands on a host with only an engine.
type user struct {
	t   testing.TB
	dir string
	env []string
}

func newUser(t testing.TB, dockerHost string) *user {
	t.Helper()
	u := &user{t: t, dir: t.TempDir()}
	text := fmt.Sprintf("node: here\ndata_dir: %[1]s/data\nrun_dir: %[1]s/run\nengine: {host: %q}\napi: {socket: %[1]s/run/s}\n", u.dir, dockerHost)
	if err := os.WriteFile(u.config(), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{"docker", "bin"} {
		if err := os.Mkdir(filepath.Join(u.dir, dir), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	u.env = append(os.Environ(), "HOLDFAST_CONFIG="+u.config(), "HOLDFAST_SOCKET="+filepath.Join(u.dir, "run", "s"),
		"HOME="+u.dir, "DOCKER_CONFIG="+filepath.Join(u.dir, "docker"), "PATH="+filepath.Join(u.dir, "bin")+":"+os.Getenv("PATH"))
	return u
}

func (u *user) config() string { return filepath.Join(u.dir, "holdfast.yaml") }

// dockerConfig writes the file that docker login writes.
func (u *user) dockerConfig(text string) {
	u.t.Helper()
	if err := os.WriteFile(filepath.Join(u.dir, "docker", "config.json"), []byte(text), 0o600); err != nil {
		u.t.Fatal(err)
	}
}

// ended is the result of a command.
type ended struct {
	code     int
	out, err string
}

// command is holdfast with args.
func (u *user) command(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, holdfastBinary(u.t), args...)
	cmd.Env = u.env
	return cmd
}

func (u *user) run(args ...string) ended {
	u.t.Helper()
	ctx, cancel := context.WithTimeout(u.t.Context(), patience)
	defer cancel()
	var out, errs bytes.Buffer
	cmd := u.command(ctx, args...)
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) || ctx.Err() != nil {
		u.t.Fatalf("%q: %v, %v", args, err, ctx.Err())
	}
	return ended{cmd.ProcessState.ExitCode(), out.String(), errs.String()}
}

// must is run for a command that must succeed.
func (u *user) must(args ...string) ended {
	u.t.Helper()
	e := u.run(args...)
	if e.code != 0 {
		u.t.Fatalf("%q: exit code %d: %s", args, e.code, e.err)
	}
	return e
}

// pulled is one image in the output of pull --json.
type pulled struct {
	spinup.Record
	Slow []spinup.Phase `json:"slow"`
}

func (u *user) json(e ended) []pulled {
	u.t.Helper()
	var list []pulled
	if err := json.Unmarshal([]byte(e.out), &list); err != nil {
		u.t.Fatalf("%v: %s", err, e.out)
	}
	return list
}

// records returns the stored records, the newest first.
func (u *user) records() []spinup.Record {
	u.t.Helper()
	s, err := spinup.OpenStore(filepath.Join(u.dir, "data", "spinup.db"), spinup.DefaultKeep(), slog.New(slog.DiscardHandler))
	if err != nil {
		u.t.Fatal(err)
	}
	defer s.Close()
	list, err := s.List(spinup.Filter{})
	if err != nil {
		u.t.Fatal(err)
	}
	return list
}

// push pushes an image of layers with the seeds from seed on to the stage's registry.
func push(t testing.TB, s *scene.Stage, name string, layers []registry.Layer) map[string]int64 {
	t.Helper()
	image, err := registry.Image(runtime.GOARCH, layers...)
	if err != nil {
		t.Fatal(err)
	}
	sizes, err := s.Registry.Push(t.Context(), image, name, registry.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return sizes
}

// served returns the bytes of these layers that were sent, from a line of the registry's
// access log on.
func served(t testing.TB, r *registry.Registry, sizes map[string]int64, from int) (n int64) {
	t.Helper()
	all, err := r.Accesses()
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range all[from:] {
		if sizes[a.Blob()] > 0 && a.Method == "GET" {
			n += a.Bytes
		}
	}
	return n
}

// line returns the number of lines of the registry's access log.
func line(t testing.TB, r *registry.Registry) int {
	t.Helper()
	all, err := r.Accesses()
	if err != nil {
		t.Fatal(err)
	}
	return len(all)
}

// starting returns the lines of text that begin with prefix.
func starting(text, prefix string) (out []string) {
	for l := range strings.Lines(text) {
		if strings.HasPrefix(l, prefix) {
			out = append(out, strings.TrimSpace(l))
		}
	}
	return out
}
