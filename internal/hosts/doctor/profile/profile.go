// Package profile records where the CPU time of a host is spent, by container, and
// compares two recordings, for example of a slow and a healthy host.
//
// A recording is a file in pprof's format, so `go tool pprof` opens it. Its stacks have
// names and no addresses: hosts can be compared, and the file does not disclose where the
// kernel lies in memory.
package profile

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"time"
)

// Bounds of a recording.
const (
	MinFor = time.Second
	MaxFor = time.Hour
	// DefaultHz is not a round number, so that periodic work at a round rate is not
	// sampled always or never.
	DefaultHz = 99
)

// Profile is a recording.
type Profile struct {
	Meta    Meta
	Frames  []Frame
	Samples []Sample
}

// Meta describes a recording: what was recorded, where and how well.
type Meta struct {
	Format  int       `json:"holdfast_recording"`
	Host    string    `json:"host"`
	Kernel  string    `json:"kernel"` // release, as in uname -r
	CPUs    int       `json:"cpus"`
	Hz      int       `json:"hz"`
	Began   time.Time `json:"began"`
	Seconds float64   `json:"seconds"`
	// Lost counts records for which the kernel had no buffer space.
	Lost uint64 `json:"lost"`
	// Dropped counts samples whose stack exceeds the bounds.
	Dropped uint64 `json:"dropped"`
	// Container is the container that was recorded; "" is the whole host.
	Container string `json:"container,omitempty"`
	// Gaps lists what could not be observed, and why.
	Gaps []string `json:"gaps,omitempty"`
}

// Task identifies what ran. Unknown values are empty.
type Task struct {
	Container   string // its name
	ContainerID string
	Image       string
	Cgroup      string // path from the root of its hierarchy
	Pid         int
	Comm        string // of the thread
}

// Frame is a function in a stack.
type Frame struct {
	Name   string // "[libc.so.6]": unknown, in that file
	File   string // the program or the library, as the process sees it
	Kernel bool
}

// Sample is the number of times that a task was seen at a place.
type Sample struct {
	Task  Task
	Stack []int // indices of Profile.Frames, the innermost function first
	Count int64
}

// ErrFormat means that a file is not a recording, or is damaged.
var ErrFormat = errors.New("not a recording of `holdfast doctor record`")

// validate refuses impossible values. They come from a file and are used as divisors.
func (m Meta) validate() error {
	switch {
	case m.Format != format:
		return fmt.Errorf("%w: it is of format %d, this version of Holdfast reads %d", ErrFormat, m.Format, format)
	case m.CPUs < 1 || m.CPUs > 1<<16, m.Hz < 1 || m.Hz > 100_000:
		return fmt.Errorf("%w: %d CPUs at %d Hz", ErrFormat, m.CPUs, m.Hz)
	case math.IsNaN(m.Seconds) || m.Seconds <= 0 || m.Seconds > 10*MaxFor.Seconds():
		return fmt.Errorf("%w: it lasted %v seconds", ErrFormat, m.Seconds)
	}
	return nil
}

// Busy returns the used share of the CPU time of all CPUs, 0 to 1.
func (p *Profile) Busy() float64 { return p.Meta.share(p.Total()) }

// Total returns the number of samples.
func (p *Profile) Total() int64 {
	var n int64
	for _, s := range p.Samples {
		n += s.Count
	}
	return n
}

// cpus converts a number of samples to CPUs.
func (m Meta) cpus(samples int64) float64 { return float64(samples) / float64(m.Hz) / m.Seconds }

// share converts a number of samples to a share of all CPUs, 0 to 1.
func (m Meta) share(samples int64) float64 { return m.cpus(samples) / float64(m.CPUs) }

// Label returns a name for people: the best known name of the container, or else the
// control group.
func (w Task) Label() string {
	switch {
	case w.Container != "":
		return w.Container
	case w.Image != "":
		return w.Image
	case w.ContainerID != "":
		return "container " + w.ContainerID[:min(12, len(w.ContainerID))]
	case w.Cgroup == "" || w.Cgroup == "/":
		return HostLabel
	}
	return w.Cgroup
}

// HostLabel is the label of what runs in no control group of its own, including kernel
// threads.
const HostLabel = "(host)"

// Path returns a stack's path through the kernel, from the call inwards, without the
// functions that are on every path. It is nil for a sample in user space.
func (p *Profile) Path(s Sample) []string {
	var inwards []string
	for i := len(s.Stack) - 1; i >= 0; i-- {
		if f := p.Frames[s.Stack[i]]; f.Kernel {
			inwards = append(inwards, f.Name)
		}
	}
	return trimEntry(inwards)
}

// trimEntry removes the functions that enter the kernel, unless there are no others.
func trimEntry(inwards []string) []string {
	for len(inwards) > 1 && isEntry(inwards[0]) {
		inwards = inwards[1:]
	}
	return inwards
}

// isEntry reports whether a function is on the path of every call, fault or thread
// (arch/x86/entry, arch/arm64/kernel/entry-common.c, kernel/kthread.c).
func isEntry(name string) bool {
	switch name {
	case "do_syscall_64", "x64_sys_call", "invoke_syscall", "do_el0_svc", "ret_from_fork", "ret_from_fork_asm", "kthread", "common_startup_64":
		return true
	}
	return strings.HasPrefix(name, "entry_") || strings.HasPrefix(name, "el0")
}
