package bench

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"holdfast/internal/agent/cureguard"
	"holdfast/internal/hosts/doctor/cure"
	"holdfast/internal/hosts/doctor/drill"
	"holdfast/internal/hosts/doctor/fact"
	"holdfast/internal/hosts/doctor/probe"
	"holdfast/internal/platform/linux/cgroup"
	"holdfast/internal/platform/linux/pagecache"
	"holdfast/internal/platform/linux/proc"
	"holdfast/internal/platform/tasks"
)

// CureOptions configures `holdfast bench cure-memcg`.
type CureOptions struct {
	Groups int // dying memory cgroups; 0 is 20,000
	Cache  int // MiB of live page cache beside them; 0 is 256
	// Worker runs drill.Role, Reader runs CureReader, Guardian runs a guardian.
	Worker, Reader, Guardian []string
	Progress                 io.Writer // nil discards it
}

// Check reports invalid values. Defaults must be filled in before: a zero is invalid.
func (o CureOptions) Check() error {
	if o.Groups < 100 || o.Groups > 100_000 || o.Cache < 16 || o.Cache > 4096 {
		return fmt.Errorf("%d groups and %d MiB of page cache: groups must be 100 to 100,000, page cache 16 to 4096", o.Groups, o.Cache)
	}
	return nil
}

// The limits that the gentle cure must meet.
const (
	leastFreed = 0.90
	mostLost   = 0.05
)

// Names of the rows.
const (
	rowFreed      = "dying groups freed, gentle reclaim"
	rowLost       = "live page cache lost, gentle reclaim"
	rowForceFreed = "dying groups freed, everything emptied"
	rowForceLost  = "live page cache lost, everything emptied"
	rowTook       = "gentle reclaim"
)

// CureMemcg makes dying memory cgroups beside live page cache. It frees them with the
// gentle cure, and after making them again by emptying their parent
// (memory.force_empty, or memory.reclaim of everything), which is the usual advice. The
// page cache is measured with mincore(2). In a third run the pages are locked: then the
// cure must report that it cannot free them, must name the process that holds them, and
// must leave the page cache alone.
//
// Score is the freed share of the dying groups × the kept share of the live page cache,
// ours ÷ the peer's.
func CureMemcg(ctx context.Context, o CureOptions) (Result, error) {
	o.Groups, o.Cache = cmp.Or(o.Groups, 20_000), cmp.Or(o.Cache, 256)
	if err := o.Check(); err != nil {
		return Result{}, err
	}
	if o.Progress == nil {
		o.Progress = io.Discard
	}
	x := &cureBench{o: o}
	var err error
	if x.dir, err = os.MkdirTemp("", "holdfast-bench-cure-"); err != nil {
		return Result{}, err
	}
	res, err := x.run(ctx)
	if err = errors.Join(err, os.RemoveAll(x.dir)); err != nil {
		return Result{}, err
	}
	return res, nil
}

// cureBench is one run of the experiment.
type cureBench struct {
	o    CureOptions
	dir  string
	host probe.Host
}

// squeezed is the result of one way to free the groups.
type squeezed struct {
	freed, lost float64 // shares
	seconds     float64
	report      cure.Report
}

func (x *cureBench) run(ctx context.Context) (Result, error) {
	groups, err := cgroup.Find(proc.Host)
	if err != nil {
		return Result{}, err
	}
	x.host = probe.Host{Proc: proc.Host, Sys: "/sys", Groups: groups}
	gentle, err := x.measure(ctx, "zombies", x.gentle)
	if err != nil {
		return Result{}, err
	}
	force, err := x.measure(ctx, "zombies", x.force)
	if err != nil {
		return Result{}, err
	}
	locked, err := x.measure(ctx, "pinned", x.gentle)
	if err != nil {
		return Result{}, err
	}
	one := func(name, unit string, v float64) Row { return NewRow(name, unit, []float64{v}) }
	r := Result{Name: "cure-memcg", Machine: ThisMachine(""), Rows: []Row{
		one(rowFreed, "%", 100*gentle.freed), one(rowLost, "%", 100*gentle.lost), one(rowTook, "s", gentle.seconds),
		one(rowForceFreed, "%", 100*force.freed), one(rowForceLost, "%", 100*force.lost),
		one("live page cache lost, pages locked", "%", 100*locked.lost),
	}}
	if gentle.freed < leastFreed {
		r.Failed++
	}
	if gentle.lost > mostLost {
		r.Failed++
	}
	holder := ""
	for _, n := range locked.report.Notes {
		if strings.Contains(n, cure.HoldsDying) {
			holder = n
		}
	}
	if holder == "" || locked.lost > mostLost {
		r.Failed++
	}
	// The peer may keep nothing: avoid a division by 0.
	r.Score = gentle.freed * (1 - gentle.lost) / max(0.01, force.freed*(1-force.lost))
	r.Notes = append(r.Notes,
		fmt.Sprintf("%d dying groups with a page each, beside %d MiB of page cache; the limits are at least %.0f %% freed and under %.0f %% lost", x.o.Groups, x.o.Cache, 100*leastFreed, 100*mostLost),
		"with the pages locked the cure reports: "+cmp.Or(holder, "nothing"))
	return r, nil
}

// measure makes the dying groups and the live page cache, and frees the groups with f.
func (x *cureBench) measure(ctx context.Context, name string, f func(context.Context, cgroup.Group) (cure.Report, error)) (s squeezed, err error) {
	quiet, err := x.dying(ctx)
	if err != nil {
		return s, err
	}
	err = x.beside(ctx, name, func(at drill.Running) (err error) {
		s, err = x.free(ctx, at.Group, quiet, f)
		return err
	})
	return s, err
}

// beside calls f while a drill stands.
func (x *cureBench) beside(ctx context.Context, name string, f func(drill.Running) error) error {
	d, err := drill.Find(name)
	if err != nil {
		return err
	}
	standing, cancel := context.WithCancel(ctx)
	defer cancel()
	ready, ended := make(chan drill.Running, 1), make(chan error, 1)
	go func() {
		ended <- drill.Run(standing, d, drill.Options{For: drill.MaxFor, Size: x.o.Groups, Dir: x.dir, Worker: x.o.Worker, Groups: x.host.Groups,
			Progress: x.o.Progress, Ready: func(r drill.Running) { ready <- r }})
	}()
	select {
	case at := <-ready:
		err = f(at)
		cancel()
		return errors.Join(err, <-ended)
	case err := <-ended:
		return err
	}
}

func (x *cureBench) free(ctx context.Context, group string, quiet float64, f func(context.Context, cgroup.Group) (cure.Report, error)) (s squeezed, err error) {
	m, _ := x.host.Groups.Memory() // no error: the drill has used the hierarchy
	file := filepath.Join(x.dir, "live")
	reader, err := x.readIn(m.Group(group+"/live"), file)
	if err != nil {
		return s, err
	}
	defer func() {
		_ = reader.Process.Kill()
		_ = reader.Wait() // killed
		_ = os.Remove(file)
	}()
	before, err := resident(file)
	if err != nil {
		return s, err
	}
	dead, err := x.dying(ctx)
	if err != nil {
		return s, err
	}
	begun := time.Now()
	if s.report, err = f(ctx, m.Group(group)); err != nil {
		return s, err
	}
	s.seconds = time.Since(begun).Seconds()
	after, err := resident(file)
	if err != nil {
		return s, err
	}
	left, err := x.settle(ctx)
	if err != nil {
		return s, err
	}
	s.freed = max(0, min(1, (dead-left)/max(1, dead-quiet)))
	s.lost = max(0, float64(before-after)/float64(before))
	fmt.Fprintf(x.o.Progress, "%.0f of %.0f dying groups are left (%.0f before the drill), %d of %d bytes of live page cache\n", left, dead, quiet, after, before)
	return s, nil
}

// gentle is Holdfast's cure.
func (x *cureBench) gentle(ctx context.Context, g cgroup.Group) (cure.Report, error) {
	guard := cureguard.New(x.o.Guardian, filepath.Join(x.dir, "guardian"), slog.New(slog.DiscardHandler))
	r, err := cure.Memcg(g.Path).Run(ctx, cure.Env{Host: x.host, Guard: guard.Cures()}, cure.Options{Apply: true, For: 2 * time.Minute})
	return r, errors.Join(err, guard.Close())
}

// force is the peer's cure: it empties the parent group.
func (x *cureBench) force(ctx context.Context, g cgroup.Group) (cure.Report, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	return cure.Report{}, g.EmptyMemory(ctx)
}

// readIn makes a file and starts a process in its own group that reads it.
func (x *cureBench) readIn(g cgroup.Group, file string) (*exec.Cmd, error) {
	if err := os.Mkdir(g.Dir(), 0o755); err != nil { // removed with the drill's groups
		return nil, err
	}
	f, err := os.Create(file)
	if err != nil {
		return nil, err
	}
	block := make([]byte, 1<<20)
	for range x.o.Cache {
		if _, err = f.Write(block); err != nil {
			break
		}
	}
	// Drop the pages from the cache, so that they are charged to the reader.
	err = errors.Join(err, f.Sync(), unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED), f.Close())
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(x.o.Reader[0], append(append([]string{}, x.o.Reader[1:]...), g.Dir(), file)...)
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		return nil, err
	}
	if _, err := out.Read(make([]byte, 16)); err != nil {
		return nil, errors.Join(fmt.Errorf("the reader of live page cache: %w", err), cmd.Process.Kill(), cmd.Wait())
	}
	return cmd, nil
}

// CureReader is the main function of the process that holds live page cache. args are
// its control group's directory and a file, which it reads twice. It returns when ctx
// is done.
func CureReader(ctx context.Context, args []string, out io.Writer) error {
	if len(args) != 2 {
		return fmt.Errorf("%d arguments, want a control group and a file", len(args))
	}
	if err := os.WriteFile(filepath.Join(args[0], "cgroup.procs"), []byte("0"), 0); err != nil {
		return err
	}
	for range 2 {
		f, err := os.Open(args[1])
		if err != nil {
			return err
		}
		_, err = io.Copy(io.Discard, f)
		if err = errors.Join(err, f.Close()); err != nil {
			return err
		}
	}
	fmt.Fprintln(out, "read")
	<-ctx.Done()
	return nil
}

// resident returns the number of bytes of a file in the page cache.
func resident(file string) (int64, error) {
	f, err := os.Open(file)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	return pagecache.Resident(f)
}

// dying returns the number of dying memory cgroups on this host.
func (x *cureBench) dying(ctx context.Context) (float64, error) {
	facts, err := probe.Read(ctx, x.host, "memcg")
	if err != nil {
		return 0, err
	}
	for _, f := range facts {
		if f.Name == fact.MemcgDying {
			return f.Value, nil
		}
	}
	return 0, errors.New("this kernel does not count dying memory cgroups")
}

// settle returns dying after the kernel has released the groups that it can. The kernel begins
// some time after their last page is free, and has ended when the number stays for two seconds.
func (x *cureBench) settle(ctx context.Context) (float64, error) {
	n, err := x.dying(ctx)
	for same := 0; err == nil && same < 8; same++ {
		if tasks.Sleep(ctx, 250*time.Millisecond) != nil {
			return n, ctx.Err()
		}
		before := n
		if n, err = x.dying(ctx); n < before {
			same = 0
		}
	}
	return n, err
}
