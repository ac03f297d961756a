// Package drill creates pathologies for practice and for the doctor's own tests, in
// temporary control groups or containers. Each drill is bounded in size and time and
// leaves nothing behind. Its processes die with the process that started them, or at
// their deadline. The next drill removes the files and groups of a killed one.
package drill

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"time"

	"holdfast"
	"holdfast/internal/platform/linux/cgroup"
	"holdfast/internal/platform/linux/diskdir"
)

// Role is the role of the processes that cause the pathology. Its argument is a Task in
// JSON.
const Role = "doctor-drill"

// Drill is one pathology.
type Drill struct {
	Name  string // fadvise
	Short string // a sentence for the list
	Rule  string // the finding that it must cause
	// Size is the default size in Unit, MaxSize the maximum.
	Size, MaxSize int
	Unit          string
	// Containers means that it can also run in containers.
	Containers bool
	// OnDisk means that its files must be on a disk.
	OnDisk bool
	parts  []part
}

// part is one group or container of a drill.
type part struct {
	name   string
	limits limits
	// namespace gives the part a network namespace of its own.
	namespace bool
	// mounts gives the part a mount namespace of its own, in which all mounts are private.
	mounts bool
	// work causes the pathology until ctx is done. It calls ready once the pathology
	// exists.
	work func(ctx context.Context, t Task, ready func()) error
}

// Culprit returns the part of the drill that a finding must name.
func (d Drill) Culprit() string { return d.parts[0].name }

// All returns the drills.
func All() []Drill {
	return []Drill{zombies(), pinned(), fadvise(), dentries(), throttle(), neighbour(), thrash(), fsyncs(), rtnl(), conntrack(), kernelShare(), calls(), growth(), files(), backlog(), datagrams(), blackhole(), hungMount()}
}

// Without maps each check that has no drill to the reason.
func Without() map[string]string {
	return map[string]string{
		"container-churn": "only an engine starts containers: see bench/faults/churn.yaml",
		"cpu-affinity":    "it is found only while other CPUs of the host are idle: see bench/faults/host-one-cpu.yaml",
		"dirty-limit":     "it is a setting of the whole host, with which all writers wait",
		"disk-growth":     "it would have to fill a disk of the host: bench/faults/inodes.yaml and deleted.yaml do so for a minute",
		"drop-caches":     "it would drop the caches of the whole host",
		"fanotify-wait":   "a scanner that stops would hold up all programs of the host that open files",
		"fragmentation":   "it needs the memory of the whole host, and harms it for longer than the drill",
		"frozen":          "a program of one group stops one of another for as long as it lasts: see bench/faults/host-pause.yaml",
		"inotify-limit":   "the limit is one of a user on the whole host: at it, other programs of the host fail",
		"khugepaged":      "it is one thread of the whole host, whose settings are the host's",
		"log-storm":       "only an engine keeps logs: see bench/faults/logs.yaml",
		"mount-leak":      "thousands of mounts in the host's namespace slow down systemd; in a container of its own see bench/faults/mounts.yaml",
		"slow-allocation": "only a host with tens of thousands of dying groups that reclaims at their parent is slow enough: drill zombies makes its cause",
		"page-merging":    "ksmd is one thread of the whole host, with one speed: see bench/faults/merging.yaml",
		"profiler":        "the interrupts take time from all CPUs of the host: see bench/faults/profiler.yaml",
		"ptrace":          "a tracer of one group stops a program of another for as long as it lasts: see bench/faults/tracer.yaml",
		"socket-memory":   "its limit is one of the whole host, and memory of sockets stays for minutes after the drill: see bench/faults/orphans.yaml",
		"softirq":         "loopback uses the sender's CPU time, and a real network card is the host's",
		"stat-readers":    "the lock is contended only with many CPUs and groups",
		"old-kernel":      "it is a version",
		"slow-machine":    "it is the hardware",
	}
}

// Find returns a drill by its name. The error wraps holdfast.ErrNotFound.
func Find(name string) (Drill, error) {
	all := All()
	i := slices.IndexFunc(all, func(d Drill) bool { return d.Name == name })
	if i < 0 {
		return Drill{}, holdfast.WithHint(fmt.Errorf("there is no drill %q: %w", name, holdfast.ErrNotFound), "`holdfast doctor drill --help` lists them")
	}
	return all[i], nil
}

// Task holds the parameters of a drill's process.
type Task struct {
	Drill string        `json:"drill"`
	Part  string        `json:"part"`
	Join  []string      `json:"join"` // directories of the groups to join; none in a container
	Tree  string        `json:"tree"` // group below which it creates groups; "" if it creates none
	Dir   string        `json:"dir"`  // for its files
	Size  int           `json:"size"`
	For   time.Duration `json:"for_ns"` // it ends after this time in any case
}

// Work runs a drill's process: args is its Task. It returns nil when ctx is done or its
// time is over.
func Work(ctx context.Context, args []string) error {
	var t Task
	if len(args) != 1 {
		return fmt.Errorf("%s: %d arguments, want a task", Role, len(args))
	}
	if err := json.Unmarshal([]byte(args[0]), &t); err != nil {
		return fmt.Errorf("%s: %w", Role, err)
	}
	d, err := Find(t.Drill)
	if err != nil {
		return err
	}
	i := slices.IndexFunc(d.parts, func(p part) bool { return p.name == t.Part })
	if i < 0 || t.For <= 0 || t.For > MaxFor || t.Size < 1 || t.Size > d.MaxSize {
		return fmt.Errorf("%s: impossible task %s", Role, args[0])
	}
	ctx, cancel := context.WithTimeout(ctx, t.For)
	defer cancel()
	for _, dir := range t.Join {
		if err := join(dir); err != nil {
			return err
		}
	}
	ready := func() {
		// If this fails, the drill reports the missing file after setupLimit.
		_ = os.WriteFile(filepath.Join(t.Dir, readyFile+t.Part), nil, 0o600)
	}
	err = d.parts[i].work(ctx, t, ready)
	if ctx.Err() != nil && (err == nil || errors.Is(err, ctx.Err())) {
		return nil
	}
	return err
}

// readyFile is the prefix of the file that reports that a part's pathology exists.
const readyFile = "ready-"

// join moves this process into a group.
func join(dir string) error {
	if err := os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte("0"), 0); err != nil {
		return fmt.Errorf("join a control group: %w", err)
	}
	return nil
}

// MaxFor is the maximum duration of a drill.
const MaxFor = 10 * time.Minute

// Options are the options of a drill.
type Options struct {
	For  time.Duration // 0 is 30 s from when the pathology exists
	Size int           // 0 is the drill's default
	// Dir is the directory for its files; "" is diskdir.Temp. A drill with OnDisk refuses a
	// directory in memory.
	Dir string
	// Registry is the directory in which stages are registered; "" is DefaultRegistry.
	Registry string
	// Worker is the command that runs Role. For containers, its first word is the program
	// that is mounted into them. It must be static.
	Worker []string
	// Image is the image of the drill's containers, which Engine runs; "" means control
	// groups. Images with an entrypoint do not work.
	Image  string
	Engine Engine
	Groups cgroup.Mounts
	// Ready, if it is not nil, is called once the pathology exists.
	Ready func(Running)
	// Progress receives progress lines; nil discards them.
	Progress io.Writer
}

// Running describes where a drill runs.
type Running struct {
	Drill string `json:"drill"`
	Rule  string `json:"rule"` // the finding that it must cause
	// Group and Container are what the finding must name. Container is "" without an
	// engine.
	Group     string        `json:"group"`
	Container string        `json:"container,omitempty"`
	For       time.Duration `json:"for_ns"` // from now on
}

func (o *Options) defaults(d Drill) error {
	if o.For == 0 {
		o.For = 30 * time.Second
	}
	if o.Size == 0 {
		o.Size = d.Size
	}
	o.Registry = cmp.Or(o.Registry, DefaultRegistry)
	if o.Progress == nil {
		o.Progress = io.Discard
	}
	switch {
	case o.For < time.Second || o.For > MaxFor:
		return fmt.Errorf("drill %s: %v is not from 1s to %v", d.Name, o.For, MaxFor)
	case o.Size < 1 || o.Size > d.MaxSize:
		return fmt.Errorf("drill %s: %d is not from 1 to %d %s", d.Name, o.Size, d.MaxSize, d.Unit)
	case o.Image != "" && !d.Containers:
		return fmt.Errorf("drill %s needs privileges that a container does not have: it runs in control groups only", d.Name)
	case o.Image != "" && o.Engine == nil:
		return fmt.Errorf("drill %s: there is no engine to run %s: %w", d.Name, o.Image, holdfast.ErrEngine)
	}
	if d.OnDisk {
		if err := o.onDisk(d); err != nil {
			return err
		}
	}
	if os.Geteuid() != 0 {
		return holdfast.WithHint(fmt.Errorf("drill %s needs root", d.Name), "run it with sudo")
	}
	return nil
}

// onDisk returns an error if the drill's files would be in memory.
func (o *Options) onDisk(d Drill) error {
	base, err := o.base()
	if err != nil {
		return err
	}
	if inMemory, err := diskdir.InMemory(base); err != nil {
		return fmt.Errorf("drill %s: %w", d.Name, err)
	} else if inMemory {
		return holdfast.WithHint(fmt.Errorf("drill %s needs a disk, and the files of %s are in memory", d.Name, base), "choose a directory on a disk with --dir")
	}
	return nil
}
