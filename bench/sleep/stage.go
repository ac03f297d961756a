package sleep

import (
	"context"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"text/tabwriter"

	"holdfast/bench"
	"holdfast/bench/rig"
	"holdfast/internal/platform/linux/proc"
)

// Host is what suspended sessions use on a host.
type Host struct {
	Stages []Stage `json:"stages"`
}

// Stage is one look at a host at rest. Sizes are in bytes.
type Stage struct {
	Name    string       `json:"name"`
	Agent   bench.Memory `json:"agent"`
	Helpers bench.Memory `json:"helpers"` // the agent's other processes
	Engine  bench.Memory `json:"engine"`  // the daemon and its children
	// Containers is the memory of all other processes: shims, and containers of the agent.
	Containers bench.Memory `json:"containers"`
	// Heap and Goroutines are the agent's go_memstats_heap_inuse_bytes and go_goroutines.
	Heap       float64 `json:"heap"`
	Goroutines float64 `json:"goroutines"`
	// Images is the space of the images on disk, Files that of the agent's other files,
	// and EngineFiles that of the engine's data, which has the sessions' image.
	Images      int64 `json:"images"`
	Files       int64 `json:"files"`
	EngineFiles int64 `json:"engine_files"`
}

// total is the RSS of all processes. Its growth does not depend on other programs of the
// host. PSS shrinks while another engine maps the same files.
func (s Stage) total() float64 {
	return float64(s.Agent.RSS + s.Helpers.RSS + s.Engine.RSS + s.Containers.RSS)
}

// look measures the host.
func (x *experiment) look(ctx context.Context, name string) (s Stage, err error) {
	s.Name = name
	figures, err := rig.Figures(ctx, "http://"+x.metrics+"/metrics")
	if err != nil {
		return s, err
	}
	s.Heap, s.Goroutines = figures["go_memstats_heap_inuse_bytes"], figures["go_goroutines"]
	if err := x.processes(&s); err != nil {
		return s, err
	}
	images := filepath.Join(x.dir, "data", "suspended")
	if s.Images, err = used(images, ""); err == nil {
		s.Files, err = used(x.dir, images)
	}
	if err == nil {
		s.EngineFiles, err = used(x.lab.DataRoot(), "")
	}
	return s, err
}

// processes measures the memory of all processes of the lab but the bench's own.
func (x *experiment) processes(s *Stage) error {
	pids, err := proc.Host.Pids()
	if err != nil {
		return err
	}
	own, err := proc.Host.Ancestors(os.Getpid())
	if err != nil {
		return err
	}
	own = append(own, os.Getpid())
	for _, pid := range pids {
		if slices.Contains(own, pid) {
			continue
		}
		if err := x.partOf(s, pid).Add(pid); err != nil {
			return err
		}
	}
	return nil
}

// partOf returns the part of the stage that a process belongs to. Helpers are children of
// the agent, or have its directory in their arguments.
func (x *experiment) partOf(s *Stage, pid int) *bench.Memory {
	args, _ := proc.Host.Cmdline(pid) // after an error the process has ended
	above, _ := proc.Host.Ancestors(pid)
	of := func(parent int) bool { return pid == parent || slices.Contains(above, parent) }
	switch {
	case pid == x.agent.PID():
		return &s.Agent
	case of(x.lab.Pid()):
		return &s.Engine
	case of(x.agent.PID()) || strings.Contains(strings.Join(args, " "), x.dir+"/"):
		return &s.Helpers
	}
	return &s.Containers
}

// used returns the bytes on disk of a directory, without those of another one in it.
func used(dir, without string) (n int64, err error) {
	err = filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if os.IsNotExist(err) {
			return nil // it was removed meanwhile
		}
		if err != nil {
			return err
		}
		if path == without {
			return fs.SkipDir
		}
		info, err := e.Info()
		if os.IsNotExist(err) {
			return nil
		}
		if err != nil {
			return err
		}
		if st, ok := info.Sys().(*syscall.Stat_t); ok {
			n += st.Blocks * 512 // the unit of st_blocks, stat(2)
		}
		return nil
	})
	return n, err
}

// WriteTable prints the stages as text.
func (h Host) WriteTable(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	row := func(name string, of func(Stage) float64) {
		fmt.Fprintf(t, "%s\t", name)
		for _, s := range h.Stages {
			fmt.Fprintf(t, "%.1f\t", of(s)/1e6)
		}
		fmt.Fprintln(t)
	}
	fmt.Fprint(t, "MB\t")
	for _, s := range h.Stages {
		fmt.Fprintf(t, "%s\t", s.Name)
	}
	fmt.Fprintln(t)
	row("all processes: RSS", Stage.total)
	row("agent: PSS", func(s Stage) float64 { return float64(s.Agent.PSS) })
	row("agent: RSS", func(s Stage) float64 { return float64(s.Agent.RSS) })
	row("agent: heap in use", func(s Stage) float64 { return s.Heap })
	row("helpers: PSS", func(s Stage) float64 { return float64(s.Helpers.PSS) })
	row("helpers: RSS", func(s Stage) float64 { return float64(s.Helpers.RSS) })
	row("engine: PSS", func(s Stage) float64 { return float64(s.Engine.PSS) })
	row("engine: RSS", func(s Stage) float64 { return float64(s.Engine.RSS) })
	row("shims and containers: PSS", func(s Stage) float64 { return float64(s.Containers.PSS) })
	row("shims and containers: RSS", func(s Stage) float64 { return float64(s.Containers.RSS) })
	row("disk: images", func(s Stage) float64 { return float64(s.Images) })
	row("disk: the agent's other files", func(s Stage) float64 { return float64(s.Files) })
	row("disk: the engine's data", func(s Stage) float64 { return float64(s.EngineFiles) })
	fmt.Fprint(t, "goroutines of the agent\t")
	for _, s := range h.Stages {
		fmt.Fprintf(t, "%.0f\t", s.Goroutines)
	}
	fmt.Fprintln(t)
	return t.Flush()
}
