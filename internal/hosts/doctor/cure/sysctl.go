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

// setting is one of the kernel's that a finding may advise to change.
type setting struct {
	name string // as sysctl(8) has it
	file string // below /proc/sys, or with sys, below /sys
	sys  bool
	// better is what it is set to where nothing else is said, and most the
	// largest that is taken; a word's choices are in words.
	better func(now int64) int64
	most   int64
	words  []string
	gain   string
	risk   string
}

// settings are all that are changed. Numbers are only raised.
func settings() []setting {
	double := func(now int64) int64 { return 2 * now }
	return []setting{
		{name: "net.netfilter.nf_conntrack_max", file: "net/netfilter/nf_conntrack_max", better: double, most: 16 << 20,
			gain: "room for as many connections again", risk: "320 bytes of the kernel's memory for each connection that is there"},
		{name: "kernel.pid_max", file: "kernel/pid_max", better: func(int64) int64 { return 4 << 20 }, most: 4 << 20,
			gain: "room for more threads", risk: "old programs that print pids in five digits"},
		{name: "kernel.threads-max", file: "kernel/threads-max", better: double, most: 8 << 20,
			gain: "room for more threads", risk: "about 10 KiB of the kernel's memory for each thread that is there"},
		{name: "fs.file-max", file: "fs/file-max", better: double, most: 1 << 40,
			gain: "room for more open files", risk: "about 1 KiB of the kernel's memory for each file that is open"},
		{name: "fs.inotify.max_user_watches", file: "fs/inotify/max_user_watches", better: double, most: 64 << 20,
			gain: "room for more inotify watches", risk: "about 1 KiB of the kernel's memory for each watch that is there"},
		{name: "transparent_hugepage.defrag", file: "kernel/mm/transparent_hugepage/defrag", sys: true, words: []string{"defer", "defer+madvise", "madvise", "never", "always"},
			gain: "programs do not stop for the making of huge pages", risk: "fewer huge pages at first"},
	}
}

// Settings are the names of the settings that can be changed.
func Settings() []string {
	var names []string
	for _, s := range settings() {
		names = append(names, s.name)
	}
	return names
}

// Sysctl changes one of the kernel's settings, NAME or NAME=VALUE, and notes the old
// value in the file notes, from which SysctlUndo writes it back.
func Sysctl(assignment, notes string) Cure {
	return Cure{Name: "sysctl", prepare: func(_ context.Context, e Env, o Options) (act, error) {
		name, value, given := strings.Cut(assignment, "=")
		s, err := findSetting(name)
		if err != nil {
			return act{}, err
		}
		now, err := s.read(e.Host)
		if err != nil {
			return act{}, err
		}
		if !given {
			value = s.advised(now)
		}
		if err := s.check(now, value); err != nil {
			return act{}, err
		}
		a := act{target: s.name, plan: Plan{Gain: s.gain, Risk: s.risk,
			Shows: []string{s.command(e.Host, value)},
			Does:  []string{fmt.Sprintf("write %s to %s, which has %s, and note that for --undo", value, s.path(e.Host), now)}}}
		if now == value {
			a.plan.Does, a.notes = nil, []string{"it has this value"}
			return a, nil
		}
		if o.Apply && os.Geteuid() != 0 {
			return a, notRoot("changing " + s.name)
		}
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

// SysctlUndo writes the noted old value of a setting back, if it still has the one
// that was written here.
func SysctlUndo(name, notes string) Cure {
	return Cure{Name: "sysctl --undo", prepare: func(_ context.Context, e Env, o Options) (act, error) {
		s, err := findSetting(name)
		if err != nil {
			return act{}, err
		}
		all, err := readNotes(notes)
		if err != nil {
			return act{}, err
		}
		n, ok := all[s.name]
		if !ok {
			return act{}, fmt.Errorf("%s was not changed by a cure: %w", s.name, ErrNothing)
		}
		now, err := s.read(e.Host)
		if err != nil {
			return act{}, err
		}
		a := act{target: s.name, plan: Plan{Gain: "it is as it was before the cure", Risk: "so is what it cured",
			Does: []string{fmt.Sprintf("write %s to %s, which has %s", n.Old, s.path(e.Host), now)}}}
		if now == n.Old { // it was noted, and the process killed before it was written
			a.plan.Does = []string{"forget that it was to be changed: it has its old value"}
			a.do = func(context.Context) (result, error) {
				delete(all, s.name)
				return result{}, writeNotes(notes, all)
			}
			return a, nil
		}
		if now != n.New {
			return a, fmt.Errorf("%s is %s, and not %s, which was written here: somebody else has changed it", s.name, now, n.New)
		}
		if o.Apply && os.Geteuid() != 0 {
			return a, notRoot("changing " + s.name)
		}
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
		return setting{}, holdfast.WithHint(fmt.Errorf("setting %q: %w", name, holdfast.ErrNotFound), "these can be changed: "+strings.Join(Settings(), ", "))
	}
	return all[i], nil
}

func (s setting) path(h probe.Host) string {
	if s.sys {
		return filepath.Join(h.Sys, s.file)
	}
	return filepath.Join(string(h.Proc), "sys", s.file)
}

// read returns the value; of a choice the one in brackets.
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

// check refuses a value that is none, or lower than what is.
func (s setting) check(now, value string) error {
	if s.words != nil {
		if !slices.Contains(s.words, value) {
			return fmt.Errorf("%s: %q is none of %s", s.name, value, strings.Join(s.words, ", "))
		}
		return nil
	}
	n, err := strconv.ParseInt(value, 10, 64)
	was, err2 := strconv.ParseInt(now, 10, 64)
	switch {
	case err != nil:
		return fmt.Errorf("%s: %q is no number", s.name, value)
	case err2 != nil:
		return fmt.Errorf("%s has the value %q, which is no number", s.name, now)
	case n < was || n > s.most && n != was:
		return fmt.Errorf("%s: %d is not from %d, which it has, to %d: cures only raise it", s.name, n, was, s.most)
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

// noted is a value that was changed.
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

// noteOld notes a value before it is changed. Of one that a cure has changed before
// the first old value stays.
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
