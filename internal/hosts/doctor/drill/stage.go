package drill

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"holdfast/internal/platform/engine"
	"holdfast/internal/platform/linux/cgroup"
	"holdfast/internal/platform/linux/diskdir"
	"holdfast/internal/platform/linux/flock"
)

// prefix is the prefix of a drill's directory and of its control groups.
const prefix = "holdfast-drill-"

// Label marks the containers of drills; its value is the name of the stage.
const Label = "holdfast.drill"

// Engine runs containers.
type Engine interface {
	Create(ctx context.Context, s engine.Spec) (string, error)
	Start(ctx context.Context, id string) error
	Wait(ctx context.Context, id string) (int, error)
	List(ctx context.Context, labels map[string]string) ([]engine.Container, error)
	Inspect(ctx context.Context, id string) (engine.Container, error)
	Remove(ctx context.Context, id string) error
}

// limits are the limits of a group; 0 is none.
type limits struct {
	memory int64   // bytes
	cpus   float64 //
	weight int     // cpu.shares: 1024 is the default
}

// stage is the set of resources of a drill. The process that made it holds its lock, so
// the next drill can recognise the stages of dead processes.
type stage struct {
	dir  string
	name string // also the prefix of its control groups
	lock *flock.Dir
}

func newStage(o Options) (*stage, error) {
	base, err := o.base()
	if err != nil {
		return nil, err
	}
	dir, err := flock.MkdirTemp(base, prefix)
	if err != nil {
		return nil, err
	}
	s := stageIn(dir)
	if err := s.register(o.Registry); err != nil {
		return nil, errors.Join(err, os.Remove(s.dir), s.lock.Close())
	}
	return s, nil
}

func stageIn(dir *flock.Dir) *stage { return &stage{dir: dir.Path, name: dir.Name(), lock: dir} }

// base returns the directory below which stages have their directories.
func (o Options) base() (string, error) { return filepath.Abs(cmp.Or(o.Dir, diskdir.Temp())) }

// remove removes all resources of the stage. It removes the directory last but one and
// the registration last: while one of them exists, the next sweep tries again.
func (s *stage) remove(o Options) error {
	err := errors.Join(s.removeContainers(o), removeGroups(o.Groups, s.name))
	if err == nil {
		err = os.RemoveAll(s.dir)
	}
	if err == nil {
		err = s.unregister(o.Registry)
	}
	if s.lock != nil {
		err = errors.Join(err, s.lock.Close())
	}
	return err
}

// Sweep removes what killed drills have left: those with files in o.Dir and all that are
// registered. It removes groups, containers if there is an engine, and files.
func Sweep(ctx context.Context, o Options) error {
	base, err := o.base()
	if err != nil {
		return err
	}
	o.Registry = cmp.Or(o.Registry, DefaultRegistry)
	dirs, err := registered(o.Registry)
	if err != nil {
		return err
	}
	var failed []error
	for _, dir := range dirs {
		if ctx.Err() != nil {
			return errors.Join(append(failed, ctx.Err())...)
		}
		failed = append(failed, sweepStage(dir, o))
	}
	failed = append(failed, flock.Dead(base, prefix, func(dir *flock.Dir) error { return stageIn(dir).remove(o) }))
	return errors.Join(failed...)
}

// makeGroup creates a group with its limits in every hierarchy that the doctor reads. It
// returns its path and its directories.
func (s *stage) makeGroup(ms cgroup.Mounts, p part) (string, []string, error) {
	group := "/" + s.name + "/" + p.name
	var dirs []string
	for _, m := range ms {
		if !m.V2 && !wanted(m.Controllers) {
			continue
		}
		top, g := m.Group(s.name), m.Group(group)
		if err := os.MkdirAll(top.Dir(), 0o755); err != nil {
			return "", nil, err
		}
		if m.V2 {
			enable(top.Dir())
		}
		// A part's weight only counts among its siblings.
		if err := (limits{weight: p.limits.weight}).apply(top); err != nil {
			return "", nil, err
		}
		if err := os.MkdirAll(g.Dir(), 0o755); err != nil {
			return "", nil, err
		}
		if err := p.limits.apply(g); err != nil {
			return "", nil, err
		}
		dirs = append(dirs, g.Dir())
	}
	if len(dirs) == 0 {
		return "", nil, errors.New("no hierarchy of control groups is mounted")
	}
	return group, dirs, nil
}

func wanted(controllers []string) bool {
	return slices.ContainsFunc(controllers, func(c string) bool {
		return slices.Contains([]string{"memory", "cpu", "cpuacct", "blkio", "pids", "freezer"}, c)
	})
}

// enable enables all of a v2 group's controllers for its children.
func enable(dir string) {
	b, err := os.ReadFile(dir + "/cgroup.controllers")
	if err != nil {
		return
	}
	for c := range strings.FieldsSeq(string(b)) { // one at a time, so that a failure affects no other controller
		_ = os.WriteFile(dir+"/cgroup.subtree_control", []byte("+"+c), 0)
	}
}

// period is the period of CPU limits in microseconds, the kernel's default.
const period = 100_000

func (l limits) apply(g cgroup.Group) error {
	files := make(map[string]string)
	number := func(v int64) string { return strconv.FormatInt(v, 10) }
	if l.memory > 0 && g.Has("memory") {
		files[pick(g.V2, "memory.max", "memory.limit_in_bytes")] = number(l.memory)
	}
	if l.cpus > 0 && g.Has("cpu") {
		quota := number(int64(l.cpus * period))
		if g.V2 {
			files["cpu.max"] = quota + " " + number(period)
		} else {
			files["cpu.cfs_quota_us"] = quota
		}
	}
	if l.weight > 0 && g.Has("cpu") {
		files[pick(g.V2, "cpu.weight", "cpu.shares")] = pick(g.V2, number(max(1, int64(l.weight)*100/1024)), number(int64(l.weight)))
	}
	for name, value := range files {
		if err := os.WriteFile(filepath.Join(g.Dir(), name), []byte(value), 0); err != nil {
			return fmt.Errorf("limit a control group: %w", err)
		}
	}
	return nil
}

func pick(v2 bool, a, b string) string {
	if v2 {
		return a
	}
	return b
}

// memoryTree prepares a group below which a part creates groups of its own; on v2 a group
// with children must not have processes. It returns the directories that are still to be
// joined, and the directory of the memory hierarchy.
func (s *stage) memoryTree(ms cgroup.Mounts, group string, dirs []string) (rest []string, tree string, err error) {
	for _, m := range ms {
		g := m.Group(group)
		if (tree != "" && m.V2) || !g.Has("memory") {
			continue
		}
		if tree = g.Dir(); m.V2 {
			enable(tree)
		}
	}
	if tree == "" {
		return nil, "", errors.New("the memory controller cannot be used below the root (on v2: is it in cgroup.subtree_control?)")
	}
	return slices.DeleteFunc(slices.Clone(dirs), func(d string) bool { return d == tree }), tree, nil
}

// removeGroups kills the processes in the groups of a name and removes the groups.
func removeGroups(ms cgroup.Mounts, name string) error {
	groups, err := ms.Search(func(n string) bool { return n == name })
	for _, g := range groups {
		err = errors.Join(err, removeGroup(g))
	}
	return err
}

func removeGroup(g cgroup.Group) error {
	var err error
	for range 200 {
		if err = g.Kill(); err != nil {
			return err
		}
		var dirs []string
		_ = g.Walk(func(g cgroup.Group, _ int) error {
			dirs = append(dirs, g.Dir())
			return nil
		})
		err = nil
		for _, dir := range slices.Backward(dirs) {
			if e := unix.Rmdir(dir); e != nil && !errors.Is(e, unix.ENOENT) {
				err = fmt.Errorf("remove control group %s: %w", dir, e)
			}
		}
		if err == nil {
			return nil
		}
		time.Sleep(25 * time.Millisecond) // killed processes leave a group when the kernel has finished with them
	}
	return err
}

// Paths in a container.
const (
	inProgram = "/holdfast-drill"
	inDir     = "/drill"
)

// container starts a part in a container.
func (s *stage) container(ctx context.Context, p part, t Task, o Options, ended chan<- error) (runningPart, error) {
	program, err := filepath.EvalSymlinks(o.Worker[0])
	if err != nil {
		return runningPart{}, err
	}
	dir := t.Dir
	t.Dir = inDir
	task, err := json.Marshal(t)
	if err != nil {
		return runningPart{}, err
	}
	name := s.name + "-" + p.name
	id, err := o.Engine.Create(ctx, engine.Spec{
		Name: name, Image: o.Image, Network: "none", Labels: map[string]string{Label: s.name},
		Command: append(append([]string{inProgram}, o.Worker[1:]...), string(task)),
		Mounts: []engine.Mount{
			{Type: "bind", Source: program, Target: inProgram, ReadOnly: true},
			{Type: "bind", Source: dir, Target: inDir},
		},
		Memory: p.limits.memory, CPUs: p.limits.cpus,
	})
	if err != nil {
		return runningPart{}, err
	}
	if err := o.Engine.Start(ctx, id); err != nil {
		return runningPart{}, err // removed with the stage
	}
	c, err := o.Engine.Inspect(ctx, id)
	if err != nil {
		return runningPart{}, err
	}
	waiting, cancel := context.WithCancel(context.WithoutCancel(ctx))
	done := make(chan struct{})
	go func() {
		defer close(done)
		if code, err := o.Engine.Wait(waiting, id); waiting.Err() == nil {
			ended <- fmt.Errorf("container %s ended with code %d (%w)", name, code, errors.Join(err, errEnded))
		}
	}()
	return runningPart{group: c.CgroupPath, container: name, stop: func() error {
		cancel()
		<-done
		return nil
	}}, nil
}

var errEnded = errors.New("its process ended")

// removeContainers removes the containers of the stage, also after an interruption.
func (s *stage) removeContainers(o Options) error {
	if o.Engine == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	list, err := o.Engine.List(ctx, map[string]string{Label: s.name})
	for _, c := range list {
		err = errors.Join(err, o.Engine.Remove(ctx, c.ID))
	}
	return err
}
