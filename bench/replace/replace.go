// Package replace is the experiment of `holdfast-bench replace`: a real MariaDB with GTID
// replication, a primary and two replicas, is replaced while clients read. It runs in a
// clone, because it uses examples/mariadb.
package replace

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"holdfast"
	"holdfast/bench"
	"holdfast/bench/rig"
	"holdfast/internal/control/api/client"
	"holdfast/internal/platform/engine"
	"holdfast/internal/platform/engine/docker"
	"holdfast/test/lab"
)

// Options select the measurements.
type Options struct {
	N        int           // replacements with a new replica first; 0 is 20
	Beside   int           // replacements in each of the other ways; 0 is 5
	Size     int           // MiB of data, rounded up to a power of two; 0 is 2048
	Readers  int           // of each kind, in each way; 0 is 4
	Rest     time.Duration // without a replacement before and after those of each way; 0 is 20s
	Example  string        // directory of the example; "" is examples/mariadb
	Program  string        // a build of holdfast
	Progress io.Writer     // progress lines; nil discards them
}

// Check returns an error for impossible options. It does not accept a zero that means a
// default.
func (o Options) Check() error {
	switch {
	case o.N < 1 || o.Beside < 1:
		return fmt.Errorf("replacements are %d and %d, there has to be one at least in each way", o.N, o.Beside)
	case o.Size < 1 || o.Size > 64<<10:
		return fmt.Errorf("the size is %d MiB, it has to be 1 to 65536", o.Size)
	case o.Readers < 1 || o.Readers > 100:
		return fmt.Errorf("readers are %d, they have to be 1 to 100", o.Readers)
	case o.Rest <= 0:
		return fmt.Errorf("the rest is %v, it has to be over 0", o.Rest)
	}
	if _, err := os.Stat(filepath.Join(o.Example, "image.sh")); err != nil {
		return holdfast.WithHint(err, "run this in a clone of the repository, or name examples/mariadb with --example")
	}
	return nil
}

// Run measures three ways to replace: the group's, a new replica first; the group's with
// --max-unavailable 1; and a single database without a group, stop then start. It must run
// inside a lab (lab.Reenter).
//
// Score is the longest wait of a client with a single database divided by that with the
// group. Failed counts the errors of the group's clients in the first way, its waits over
// MaxWait, and replicas that differ from the primary at the end.
func Run(ctx context.Context, o Options) (_ bench.Result, err error) {
	o.N, o.Beside, o.Size, o.Readers, o.Rest = cmp.Or(o.N, 20), cmp.Or(o.Beside, 5), cmp.Or(o.Size, 2048), cmp.Or(o.Readers, 4), cmp.Or(o.Rest, 20*time.Second)
	o.Example = cmp.Or(o.Example, "examples/mariadb")
	if o.Progress == nil {
		o.Progress = io.Discard
	}
	if err := o.Check(); err != nil {
		return bench.Result{}, err
	}
	x := &experiment{o: o, began: time.Now()}
	defer func() { err = errors.Join(err, x.close()) }()
	if err := x.prepare(ctx); err != nil {
		return bench.Result{}, x.told(err)
	}
	r, err := x.run(ctx)
	return r, x.told(err)
}

// experiment is one run.
type experiment struct {
	o     Options
	began time.Time
	dir   string // of the agent
	srv   string // /srv/mariadb of the example
	tcp   string // the group's address
	lab   *lab.Engine
	agent *rig.Process
	api   *client.Client
}

func (x *experiment) say(format string, args ...any) {
	fmt.Fprintf(x.o.Progress, "%6.1fs  %s\n", time.Since(x.began).Seconds(), fmt.Sprintf(format, args...))
}

// told adds the end of the agent's log to an error.
func (x *experiment) told(err error) error {
	if err == nil || x.agent == nil {
		return err
	}
	return fmt.Errorf("%w\n%s", err, x.agent.Tail())
}

// prepare makes the image and the data, and starts primary and replicas.
func (x *experiment) prepare(ctx context.Context) (err error) {
	if x.lab, err = lab.StartEngine(ctx, lab.Options{}); err != nil {
		return err
	}
	x.dir = x.lab.Scratch()
	x.srv = filepath.Join(x.dir, "srv")
	shared := filepath.Join(x.srv, "shared")
	if err := os.MkdirAll(shared, 0o755); err != nil {
		return err
	}
	if _, err := x.command(ctx, filepath.Join(x.o.Example, "image.sh")); err != nil {
		return err
	}
	for _, name := range []string{"serve", "restore", "caught-up", "first.sql"} {
		text, err := os.ReadFile(filepath.Join(x.o.Example, "replicated", name))
		if err == nil {
			err = os.WriteFile(filepath.Join(shared, name), text, 0o644)
		}
		if err != nil {
			return err
		}
	}
	for _, key := range []string{"snapshot", "primary", "alone", "db-0", "db-1", "db-2"} {
		dir := filepath.Join(x.srv, key)
		if err := errors.Join(os.Mkdir(dir, 0o700), os.Chown(dir, 999, 999)); err != nil {
			return err
		}
	}
	if err := x.fill(ctx, shared); err != nil {
		return err
	}
	return x.start(ctx, shared)
}

// fill makes the snapshot: a table with rows of 1 KiB.
func (x *experiment) fill(ctx context.Context, shared string) error {
	x.say("making %d MiB of data", x.o.Size)
	sql := []string{
		"USE app;",
		"CREATE TABLE t (id INT PRIMARY KEY AUTO_INCREMENT, kind INT NOT NULL, pad VARCHAR(1000) NOT NULL) ENGINE=InnoDB;",
		"CREATE TABLE w (id INT PRIMARY KEY AUTO_INCREMENT, at BIGINT NOT NULL) ENGINE=InnoDB;",
		"INSERT INTO t (kind, pad) VALUES (0, RPAD('', 1000, 'x'));",
	}
	for rows := 1; rows < x.o.Size<<10; rows *= 2 {
		sql = append(sql, "INSERT INTO t (kind, pad) SELECT FLOOR(RAND() * 100), RPAD(SHA1(RAND()), 1000, SHA1(RAND())) FROM t;")
	}
	if err := os.WriteFile(filepath.Join(shared, "fill.sql"), []byte(strings.Join(sql, "\n")+"\n"), 0o644); err != nil {
		return err
	}
	_, err := x.command(ctx, "docker", "run", "--rm", "--network", "none", "--volume", filepath.Join(x.srv, "snapshot")+":/data", "--volume", shared+":/srv:ro",
		"--volume", filepath.Join(shared, "first.sql")+":/first.sql:ro", "mariadb:local", "sh", "-c", "create && mariadbd --bootstrap </srv/fill.sql || { cat /data/error.log >&2; exit 1; }")
	if err != nil {
		return err
	}
	return os.Rename(filepath.Join(x.srv, "snapshot", "db"), filepath.Join(shared, "snapshot"))
}

// start starts the agent, and returns when both replicas serve.
func (x *experiment) start(ctx context.Context, shared string) (err error) {
	gateway, err := lab.FreePort()
	if err != nil {
		return err
	}
	if x.tcp, err = lab.FreePort(); err != nil {
		return err
	}
	example, err := os.ReadFile(filepath.Join(x.o.Example, "replicated", "holdfast.yaml"))
	if err != nil {
		return err
	}
	config := filepath.Join(x.dir, "holdfast.yaml")
	text := fmt.Sprintf("node: bench-replace\ndata_dir: %[1]s/data\nrun_dir: %[1]s/run\nengine: {host: %[2]q}\ngateway: {listen: %[3]q}\napi: {socket: %[1]s/run/s, listen: \"\"}\ndoctor: {enabled: false}\n%[4]s",
		x.dir, x.lab.Host(), gateway, strings.NewReplacer("/srv/mariadb", x.srv, "127.0.0.1:3306", x.tcp).Replace(string(example)))
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		return err
	}
	if x.api, err = client.New(client.Options{Socket: filepath.Join(x.dir, "run", "s")}); err != nil {
		return err
	}
	if x.agent, err = rig.Start("agent", []string{x.o.Program, "agent", "--config", config}, filepath.Join(x.dir, "log"), rig.Nice, false); err != nil {
		return err
	}
	if err := x.until(ctx, rig.Patience, "the agent serves", func(ctx context.Context) bool { return x.api.Ready(ctx) == nil }); err != nil {
		return err
	}
	for _, key := range []holdfast.SessionKey{"primary", "alone"} {
		x.say("starting %s", key)
		s, err := x.api.StartSession(ctx, key, "")
		if err != nil {
			return err
		}
		if key == "primary" {
			host, _, _ := strings.Cut(s.Address, ":")
			if err := os.WriteFile(filepath.Join(shared, "primary"), []byte(host), 0o644); err != nil {
				return err
			}
		}
	}
	x.say("starting the replicas")
	return x.until(ctx, 30*time.Minute, "both replicas serve", func(ctx context.Context) bool {
		all, err := x.api.Groups(ctx)
		if err != nil || len(all) != 1 {
			return false
		}
		n := 0
		for _, r := range all[0].Replicas {
			if r.State == holdfast.ReplicaServing {
				n++
			}
		}
		return n == 2
	})
}

// until waits for a state.
func (x *experiment) until(ctx context.Context, limit time.Duration, what string, is func(context.Context) bool) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	for !is(ctx) {
		select {
		case <-time.After(100 * time.Millisecond):
		case <-x.agent.Ended:
			return errors.New("the agent has ended")
		case <-ctx.Done():
			return fmt.Errorf("waiting until %s: %w", what, ctx.Err())
		}
	}
	return nil
}

// command runs a command with this engine and this agent, and returns its output.
func (x *experiment) command(ctx context.Context, name string, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Env = append(os.Environ(), "DOCKER_HOST="+x.lab.Host(), "HOLDFAST_SOCKET="+filepath.Join(x.dir, "run", "s"))
	var errs strings.Builder
	cmd.Stderr = &errs
	out, err := cmd.Output()
	if err != nil {
		return out, fmt.Errorf("%s %s: %w\n%s%s", name, strings.Join(args, " "), err, out, &errs)
	}
	return out, nil
}

// replace replaces sessions, and returns the report.
func (x *experiment) replace(ctx context.Context, args ...string) (r holdfast.ReplaceReport, err error) {
	out, err := x.command(ctx, x.o.Program, append([]string{"session", "replace", "--json"}, args...)...)
	if err != nil {
		return r, err
	}
	return r, json.Unmarshal(out, &r)
}

func (x *experiment) machine(ctx context.Context) (bench.Machine, error) {
	var e engine.Engine
	e, err := docker.Open(ctx, docker.Config{Host: x.lab.Host()})
	if err != nil {
		return bench.Machine{}, err
	}
	defer e.Close()
	info, err := e.Info(ctx)
	return bench.EngineMachine(info), err
}

func (x *experiment) close() error {
	if x.agent != nil {
		_ = x.agent.Terminate(rig.Patience) // it drains; what is left ends with the lab
	}
	if x.api != nil {
		x.api.Close()
	}
	if x.lab != nil {
		return x.lab.Stop()
	}
	return nil
}
