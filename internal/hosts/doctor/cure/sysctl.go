package cure

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"holdfast"
	"holdfast/internal/hosts/doctor/probe"
	"holdfast/internal/platform/linux/kfile"
)

// setting is a kernel setting that a finding may advise to change.
type setting struct {
	name string // in the notation of sysctl(8)
	file string // below /proc/sys, or with sys, below /sys
	sys  bool
	// better returns the default new value, and most is the largest accepted value. words
	// are the accepted values of a setting that is a word.
	better func(now int64) int64
	most   int64
	words  []string
	gain   string
	risk   string
}

// settings returns the settings that can be changed. Numbers are only raised.
func settings() []setting {
	double := func(now int64) int64 { return 2 * now }
	return []setting{
		{name: "net.netfilter.nf_conntrack_max", file: "net/netfilter/nf_conntrack_max", better: double, most: 16 << 20,
			gain: "space for twice as many connections", risk: "320 bytes of kernel memory for each tracked connection"},
		{name: "kernel.pid_max", file: "kernel/pid_max", better: func(int64) int64 { return 4 << 20 }, most: 4 << 20,
			gain: "allows more threads", risk: "old programs that print pids in five digits"},
		{name: "kernel.threads-max", file: "kernel/threads-max", better: double, most: 8 << 20,
			gain: "allows more threads", risk: "about 10 KiB of kernel memory for each thread"},
		{name: "fs.file-max", file: "fs/file-max", better: double, most: 1 << 40,
			gain: "allows more open files", risk: "about 1 KiB of kernel memory for each open file"},
		{name: "fs.inotify.max_user_watches", file: "fs/inotify/max_user_watches", better: double, most: 64 << 20,
			gain: "allows more inotify watches", risk: "about 1 KiB of kernel memory for each watch"},
		{name: probe.LimitAIO, file: "fs/aio-max-nr", better: double, most: 16 << 20,
			gain: "allows more asynchronous requests", risk: "kernel memory that no process can swap out, some hundred bytes for each request"},
		{name: probe.LimitPTY, file: "kernel/pty/max", better: double, most: 64 << 10,
			gain: "allows more pseudo terminals", risk: "some KiB of kernel memory for each terminal"},
		{name: probe.LimitKeys, file: "kernel/keys/maxkeys", better: double, most: 64 << 10,
			gain: "allows more keys for each user", risk: "kernel memory for each key, bounded by kernel.keys.maxbytes"},
		{name: probe.LimitNeighbours, file: "net/ipv4/neigh/default/gc_thresh3", better: double, most: 1 << 20,
			gain: "space for twice as many neighbours", risk: "some hundred bytes of kernel memory for each neighbour"},
		{name: probe.LimitNeighbours6, file: "net/ipv6/neigh/default/gc_thresh3", better: double, most: 1 << 20,
			gain: "space for twice as many neighbours", risk: "some hundred bytes of kernel memory for each neighbour"},
		{name: "net.ipv4.neigh.default.gc_thresh2", file: "net/ipv4/neigh/default/gc_thresh2", better: double, most: 1 << 20,
			gain: "the kernel removes neighbours later", risk: "none while it is below gc_thresh3"},
		{name: "net.ipv6.neigh.default.gc_thresh2", file: "net/ipv6/neigh/default/gc_thresh2", better: double, most: 1 << 20,
			gain: "the kernel removes neighbours later", risk: "none while it is below gc_thresh3"},
		{name: "vm.max_map_count", file: "vm/max_map_count", better: double, most: 16 << 20,
			gain: "allows each process more mappings", risk: "about 200 bytes of kernel memory for each mapping"},
		{name: probe.LimitFanotify, file: "fs/fanotify/max_user_groups", better: double, most: 64 << 10,
			gain: "allows more fanotify groups for each user", risk: "kernel memory for each group and its events"},
		{name: probe.LimitPipes, file: "fs/pipe-user-pages-soft", better: double, most: 4 << 20,
			gain: "pipes keep their full size", risk: "up to 4 KiB of kernel memory for each page of a pipe"},
		{name: "transparent_hugepage.defrag", file: "kernel/mm/transparent_hugepage/defrag", sys: true, words: []string{"defer", "defer+madvise", "madvise", "never", "always"},
			gain: "programs do not stall while huge pages are built", risk: "fewer huge pages at first"},
	}
}

// Settings returns the names of the settings that can be changed.
func Settings() []string {
	var names []string
	for _, s := range settings() {
		names = append(names, s.name)
	}
	return names
}

// Sysctl changes a kernel setting, NAME or NAME=VALUE, and records the old value in the
// file notes for SysctlUndo.
func Sysctl(assignment, notes string) Cure {
	return Cure{Name: "sysctl", prepare: func(_ context.Context, e Env, o Options) (prepared, error) {
		name, value, given := strings.Cut(assignment, "=")
		s, err := findSetting(name)
		if err != nil {
			return prepared{}, err
		}
		now, err := s.read(e.Host)
		if err != nil {
			return prepared{}, err
		}
		if !given {
			value = s.advised(now)
		}
		if err := s.check(now, value); err != nil {
			return prepared{}, err
		}
		a := prepared{target: s.name, plan: Plan{Gain: s.gain, Risk: s.risk,
			Shows: []string{s.command(e.Host, value)},
			Does:  []string{fmt.Sprintf("write %s to %s (currently %s), and record the old value for --undo", value, s.path(e.Host), now)}}}
		if now == value {
			a.plan.Does, a.notes = nil, []string{"the setting already has this value"}
			return a, nil
		}
		a.root = "changing " + s.name
		a.measure = s.measure(e.Host)
		a.do = func(context.Context) (result, error) {
			if err := noteOld(notes, s.name, noted{Old: now, New: value}); err != nil {
				return result{}, err
			}
			return result{}, s.write(e.Host, value)
		}
		return a, nil
	}}
}

// SysctlUndo restores the recorded old value of a setting, if the setting still has the
// value that a cure wrote.
func SysctlUndo(name, notes string) Cure {
	return Cure{Name: "sysctl --undo", prepare: func(_ context.Context, e Env, o Options) (prepared, error) {
		s, err := findSetting(name)
		if err != nil {
			return prepared{}, err
		}
		all, err := readNotes(notes)
		if err != nil {
			return prepared{}, err
		}
		n, ok := all[s.name]
		if !ok {
			return prepared{}, fmt.Errorf("%s was not changed by a cure: %w", s.name, ErrNothing)
		}
		now, err := s.read(e.Host)
		if err != nil {
			return prepared{}, err
		}
		a := prepared{target: s.name, plan: Plan{Gain: "restores the setting from before the cure", Risk: "the cured problem may return",
			Does: []string{fmt.Sprintf("write %s to %s (currently %s)", n.Old, s.path(e.Host), now)}}}
		if now == n.Old { // it was recorded, and the process was killed before the write
			a.plan.Does = []string{"remove the recorded value: the setting has its old value"}
			a.do = func(context.Context) (result, error) {
				delete(all, s.name)
				return result{}, writeNotes(notes, all)
			}
			return a, nil
		}
		if now != n.New {
			return a, fmt.Errorf("%s is %s and no longer %s, which the cure wrote: another program has changed it", s.name, now, n.New)
		}
		a.root = "changing " + s.name
		a.measure = s.measure(e.Host)
		a.do = func(context.Context) (result, error) {
			if err := s.write(e.Host, n.Old); err != nil {
				return result{}, err
			}
			delete(all, s.name)
			return result{}, writeNotes(notes, all)
		}
		return a, nil
	}}
}

func findSetting(name string) (setting, error) {
	all := settings()
	i := slices.IndexFunc(all, func(s setting) bool { return s.name == name })
	if i < 0 {
		return setting{}, holdfast.WithHint(fmt.Errorf("setting %q: %w", name, holdfast.ErrNotFound), "the settings that can be changed: "+strings.Join(Settings(), ", "))
	}
	return all[i], nil
}

func (s setting) path(h probe.Host) string {
	if s.sys {
		return filepath.Join(h.Sys, s.file)
	}
	return filepath.Join(string(h.Proc), "sys", s.file)
}

// read returns the value; for a choice, the word in brackets.
func (s setting) read(h probe.Host) (string, error) {
	b, err := kfile.Read(s.path(h), 4096)
	if err != nil {
		return "", err
	}
	text := strings.TrimSpace(string(b))
	if _, rest, ok := strings.Cut(text, "["); ok && s.words != nil {
		text, _, _ = strings.Cut(rest, "]")
	}
	return text, nil
}

func (s setting) write(h probe.Host, value string) error { return kfile.Write(s.path(h), value) }

func (s setting) advised(now string) string {
	if s.words != nil {
		return s.words[0]
	}
	n, err := strconv.ParseInt(now, 10, 64)
	if err != nil {
		return now
	}
	return strconv.FormatInt(max(n, min(s.better(n), s.most)), 10)
}

// check refuses an invalid value, and one below the current value.
func (s setting) check(now, value string) error {
	if s.words != nil {
		if !slices.Contains(s.words, value) {
			return fmt.Errorf("%s: %q is not one of %s", s.name, value, strings.Join(s.words, ", "))
		}
		return nil
	}
	n, err := strconv.ParseInt(value, 10, 64)
	was, err2 := strconv.ParseInt(now, 10, 64)
	switch {
	case err != nil:
		return fmt.Errorf("%s: %q is not a number", s.name, value)
	case err2 != nil:
		return fmt.Errorf("%s has the value %q, which is not a number", s.name, now)
	case n < was || n > s.most && n != was:
		return fmt.Errorf("%s: %d is not from %d (the current value) to %d: cures only raise it", s.name, n, was, s.most)
	}
	return nil
}

func (s setting) measure(h probe.Host) func(context.Context) ([]Measure, error) {
	if s.words != nil {
		return nil
	}
	return func(context.Context) ([]Measure, error) {
		v, err := s.read(h)
		if err != nil {
			return nil, err
		}
		f, err := strconv.ParseFloat(v, 64)
		return []Measure{{What: s.name, Value: f}}, err
	}
}

func (s setting) command(h probe.Host, value string) string {
	if s.sys {
		return "echo " + value + " > " + s.path(h)
	}
	return "sysctl -w " + s.name + "=" + value
}

// noted is a recorded change.
type noted struct {
	Old string `json:"old"`
	New string `json:"new"`
}

// NotesFile is the name of the file of old values in the data directory.
const NotesFile = "cures-sysctl.json"

func readNotes(file string) (map[string]noted, error) {
	all := make(map[string]noted)
	b, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return all, nil
	} else if err != nil {
		return nil, err
	}
	if err := json.Unmarshal(b, &all); err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	return all, nil
}

// noteOld records a value before it is changed. If a cure has changed the setting before,
// the first old value stays recorded.
func noteOld(file, name string, n noted) error {
	all, err := readNotes(file)
	if err != nil {
		return err
	}
	if before, ok := all[name]; ok && before.New == n.Old {
		n.Old = before.Old
	}
	all[name] = n
	return writeNotes(file, all)
}

func writeNotes(file string, all map[string]noted) error {
	b, err := json.MarshalIndent(all, "", "  ")
	if err != nil {
		return err
	}
	return writeFile(file, append(b, '\n'))
}
