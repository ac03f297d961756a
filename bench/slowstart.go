package bench

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/procfs"
	"golang.org/x/sys/unix"

	"holdfast"
	"holdfast/internal/hosts/doctor/drill"
	"holdfast/internal/platform/linux/cgroup"
	"holdfast/internal/platform/linux/proc"
)

// SlowStartOptions configures `holdfast bench slow-start`.
type SlowStartOptions struct {
	Groups int // dying memory cgroups; 0 is 50,000
	Pool   int // MiB of MariaDB's buffer pool; 0 is 4096
	// Doctor runs `holdfast doctor`. The others are those of CureOptions, and Join runs
	// JoinGroup.
	Doctor, Worker, Reader, Guardian, Join []string
	Progress                               io.Writer // nil discards it
}

// Check reports invalid values. Defaults must be filled in before: a zero is invalid.
func (o SlowStartOptions) Check() error {
	if o.Groups < 100 || o.Groups > 100_000 || o.Pool < 64 || o.Pool > 65536 {
		return fmt.Errorf("%d groups and a pool of %d MiB: groups must be 100 to 100,000, the pool 64 to 65536", o.Groups, o.Pool)
	}
	for _, name := range []string{"mariadbd", "mariadb-install-db"} {
		if _, err := exec.LookPath(name); err != nil {
			return holdfast.WithHint(err, "make bench-tools installs it")
		}
	}
	return nil
}

const (
	// cacheMore is how much page cache fills the limit beyond the size of the pool, in MiB.
	cacheMore = 304
	// spare is what is left below the limit when the server starts.
	spare = 256 << 20
	// startLimit is the longest start.
	startLimit = 10 * time.Minute
	// doctorTime is how long the doctor looks at a start.
	doctorTime = 10 * time.Second
)

// SlowStart starts a real MariaDB, which locks its buffer pool in memory, in a fresh control
// group. The limit of the parent group is full of page cache, so that each page of the pool is
// allocated by reclaim. The bench compares the starts without dying memory cgroups, beside
// those that the kernel can release, after the cure of these, beside those whose pages a
// process has locked, and after that process has ended. The doctor runs during the starts
// beside dying groups.
//
// Score is the start without dying groups divided by that after the holder has ended. Failed
// counts the starts at which the doctor did not name the cause and its group.
func SlowStart(ctx context.Context, o SlowStartOptions) (_ Result, err error) {
	o.Groups, o.Pool = cmp.Or(o.Groups, 50_000), cmp.Or(o.Pool, 4096)
	if err := o.Check(); err != nil {
		return Result{}, err
	}
	if o.Progress == nil {
		o.Progress = io.Discard
	}
	x := &slowStart{o: o}
	x.cure = cureBench{o: CureOptions{Groups: o.Groups, Cache: o.Pool + cacheMore, Worker: o.Worker, Reader: o.Reader, Guardian: o.Guardian, Progress: o.Progress}}
	if x.dir, err = os.MkdirTemp("/var/tmp", "holdfast-bench-start-"); err != nil { // a disk, for page cache
		return Result{}, err
	}
	x.cure.dir = x.dir
	defer func() { err = errors.Join(err, os.RemoveAll(x.dir)) }()
	return x.run(ctx)
}

// slowStart is one run of the experiment.
type slowStart struct {
	o      SlowStartOptions
	cure   cureBench
	dir    string
	rows   []Row
	notes  []string
	failed int
}

func (x *slowStart) run(ctx context.Context) (r Result, err error) {
	groups, err := cgroup.Find(proc.Host)
	if err != nil {
		return r, err
	}
	x.cure.host.Proc, x.cure.host.Sys, x.cure.host.Groups = proc.Host, "/sys", groups
	if out, err := exec.CommandContext(ctx, "mariadb-install-db", "--no-defaults", "--user=root", "--datadir="+x.data()).CombinedOutput(); err != nil {
		return r, fmt.Errorf("mariadb-install-db: %w: %s", err, out)
	}
	clean, err := x.alone(ctx, "start without dying groups")
	if err != nil {
		return r, err
	}
	if err := x.beside(ctx, "zombies", func(parent, _ cgroup.Group) error {
		_, err := x.measure(ctx, parent, "start beside dying groups", "dying-cgroups")
		return err
	}); err != nil {
		return r, err
	}
	if err := x.beside(ctx, "zombies", func(parent, churner cgroup.Group) error {
		report, err := x.cure.gentle(ctx, churner)
		if err != nil {
			return err
		}
		dying, err := x.cure.settle(ctx)
		if err != nil {
			return err
		}
		x.note("after cure memcg %.0f memory cgroups were dying: %s", dying, strings.Join(report.Notes, "; "))
		_, err = x.measure(ctx, parent, "start after cure memcg", "")
		return err
	}); err != nil {
		return r, err
	}
	if err := x.beside(ctx, "pinned", func(parent, _ cgroup.Group) error {
		_, err := x.measure(ctx, parent, "start beside dying groups that a process holds", "pinned-cgroups")
		return err
	}); err != nil {
		return r, err
	}
	after, err := x.alone(ctx, "start after that process has ended")
	if err != nil {
		return r, err
	}
	return Result{
		Name: "slow-start", Machine: ThisMachine("mariadbd"), Rows: x.rows, Notes: x.notes, Failed: x.failed,
		Score: clean.Seconds() / after.Seconds(), Scale: "the start without dying groups ÷ that after the holder has ended",
	}, nil
}

func (x *slowStart) data() string { return filepath.Join(x.dir, "data") }

func (x *slowStart) note(format string, args ...any) {
	x.notes = append(x.notes, fmt.Sprintf(format, args...))
}

// alone measures a start in a group of its own.
func (x *slowStart) alone(ctx context.Context, name string) (took time.Duration, err error) {
	m, ok := x.cure.host.Groups.Memory()
	if !ok {
		return 0, errors.New("there is no memory controller")
	}
	g := m.Group("/holdfast-bench-start")
	if err := os.Mkdir(g.Dir(), 0o755); err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, os.Remove(g.Dir())) }()
	if g.V2 {
		if err := os.WriteFile(g.Dir()+"/cgroup.subtree_control", []byte("+memory"), 0); err != nil {
			return 0, err
		}
	}
	return x.measure(ctx, g, name, "")
}

// beside calls f with the parent of the dying groups that a drill has made, which the doctor has
// to name, and with the parent of that.
func (x *slowStart) beside(ctx context.Context, name string, f func(parent, named cgroup.Group) error) error {
	return x.cure.beside(ctx, name, func(at drill.Running) error {
		m, _ := x.cure.host.Groups.Memory() // no error: the drill has used the hierarchy
		return f(m.Group(path.Dir(at.Group)), m.Group(at.Group))
	})
}

// measure fills the parent's limit with page cache, and starts the server in a new group below
// it. If rule is set, the doctor has to find it meanwhile.
func (x *slowStart) measure(ctx context.Context, parent cgroup.Group, name, rule string) (took time.Duration, err error) {
	fmt.Fprintln(x.o.Progress, name)
	cache, db, file := child(parent, "cache"), child(parent, "db"), filepath.Join(x.dir, "cache")
	reader, err := x.cure.readIn(cache, file)
	if err != nil {
		return 0, err
	}
	defer func() {
		_ = reader.Process.Kill()
		_ = reader.Wait() // killed
		err = errors.Join(err, os.Remove(file), removeGroup(cache))
	}()
	usage, err := parent.MemoryUsage()
	if err == nil {
		err = limit(parent, usage+spare)
	}
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, limit(parent, cgroup.NoLimit)) }()
	if err := os.Mkdir(db.Dir(), 0o755); err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, removeGroup(db)) }()
	found := make(chan error, 1)
	begun := time.Now()
	server, err := x.startServer(ctx, db)
	if err != nil {
		return 0, err
	}
	defer server.end()
	go func() { found <- x.diagnose(ctx, rule, path.Base(path.Dir(cache.Path))) }()
	select {
	case err = <-server.ready:
	case <-ctx.Done():
		err = ctx.Err()
	}
	took = time.Since(begun)
	if err != nil {
		return 0, errors.Join(err, <-found)
	}
	used, faults, err := usageOf(server.cmd.Process.Pid)
	if err != nil {
		return 0, err
	}
	dying, err := x.cure.dying(ctx)
	if err != nil {
		return 0, err
	}
	x.rows = append(x.rows, NewRow(name, "s", []float64{took.Seconds()}))
	x.note("%s: %d page faults, %.1f µs of CPU time for each; %.0f memory cgroups were dying at its end", name, faults, float64(used.Microseconds())/float64(faults), dying)
	if err := <-found; err != nil {
		x.failed++
		x.note("%s: %v", name, err)
	}
	return took, nil
}

// usageOf returns the CPU time and the minor page faults of a process.
func usageOf(pid int) (time.Duration, uint, error) {
	p, err := procfs.NewProc(pid)
	if err != nil {
		return 0, 0, err
	}
	stat, err := p.Stat()
	return time.Duration(stat.CPUTime() * float64(time.Second)), max(1, stat.MinFlt), err
}

func child(g cgroup.Group, name string) cgroup.Group {
	g.Path = path.Join(g.Path, name)
	return g
}

// limit sets the memory limit of a group.
func limit(g cgroup.Group, bytes int64) error {
	file, text := "memory.limit_in_bytes", fmt.Sprint(bytes)
	if g.V2 {
		file = "memory.max"
	}
	if bytes == cgroup.NoLimit {
		text = map[bool]string{true: "max", false: "-1"}[g.V2]
	}
	return os.WriteFile(filepath.Join(g.Dir(), file), []byte(text), 0)
}

// removeGroup removes a group whose last process has just ended.
func removeGroup(g cgroup.Group) error {
	var err error
	for range 100 {
		if err = os.Remove(g.Dir()); err == nil || errors.Is(err, os.ErrNotExist) {
			return nil
		}
		time.Sleep(50 * time.Millisecond)
	}
	return err
}

// mariadb is a server that starts.
type mariadb struct {
	cmd   *exec.Cmd
	ready chan error
}

// startServer starts mariadbd in a group.
func (x *slowStart) startServer(ctx context.Context, g cgroup.Group) (*mariadb, error) {
	program, err := exec.LookPath("mariadbd")
	if err != nil {
		return nil, err
	}
	args := append(slices.Clone(x.o.Join[1:]), g.Dir(), program, "--no-defaults", "--user=root", "--datadir="+x.data(), "--socket="+filepath.Join(x.dir, "socket"),
		"--pid-file="+filepath.Join(x.dir, "pid"), "--skip-networking", "--memlock", fmt.Sprintf("--innodb-buffer-pool-size=%dM", x.o.Pool))
	m := &mariadb{cmd: exec.Command(x.o.Join[0], args...), ready: make(chan error, 3)} // each sender sends once
	out, err := m.cmd.StderrPipe()
	if err == nil {
		err = m.cmd.Start()
	}
	if err != nil {
		return nil, fmt.Errorf("mariadbd: %w", err)
	}
	time.AfterFunc(startLimit, func() { m.ready <- fmt.Errorf("mariadbd is not ready after %v", startLimit) })
	go func() { // ends with the server
		lines, last := bufio.NewScanner(out), ""
		for lines.Scan() {
			if last = lines.Text(); strings.Contains(last, "ready for connections") {
				m.ready <- nil
			}
		}
		m.ready <- fmt.Errorf("mariadbd has ended: %s", last)
	}()
	return m, nil
}

// end stops the server.
func (m *mariadb) end() {
	_ = m.cmd.Process.Signal(unix.SIGTERM) // it may have ended
	_ = m.cmd.Wait()
}

// diagnose runs the doctor, and returns an error if it does not find the rule below the group.
func (x *slowStart) diagnose(ctx context.Context, rule, group string) error {
	if rule == "" {
		return nil
	}
	out, err := exec.CommandContext(ctx, x.o.Doctor[0], append(slices.Clone(x.o.Doctor[1:]), "--json", "--for", doctorTime.String())...).Output()
	if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) { // it exits with 1 for findings
		return err
	}
	var report struct {
		Findings []json.RawMessage `json:"findings"`
	}
	if err := json.Unmarshal(out, &report); err != nil {
		return fmt.Errorf("the doctor's report: %w", err)
	}
	for _, f := range report.Findings {
		if text := string(f); strings.Contains(text, `"`+rule+`"`) && strings.Contains(text, group) {
			return nil
		}
	}
	return fmt.Errorf("the doctor did not find %s below %s", rule, group)
}

// JoinGroup joins the control group of the first argument, and becomes the program of the others.
func JoinGroup(args []string) error {
	if len(args) < 2 {
		return fmt.Errorf("%d arguments, want a control group and a program", len(args))
	}
	if err := os.WriteFile(filepath.Join(args[0], "cgroup.procs"), []byte("0"), 0); err != nil {
		return err
	}
	return unix.Exec(args[1], args[1:], os.Environ())
}
