package profile

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/google/pprof/profile"
)

// format is the version of the files. Newer versions are refused.
const format = 1

// labelPid is the numeric label of a sample in the file.
const labelPid = "pid"

// label is a text label of a sample in the file. pprof selects by them:
// -tagfocus=container=web-1.
type label struct {
	key  string
	text *string
}

func (w *Task) labels() []label {
	return []label{{"container", &w.Container}, {"container_id", &w.ContainerID}, {"image", &w.Image}, {"cgroup", &w.Cgroup}, {"comm", &w.Comm}}
}

// kernelFile is the mapping of the kernel, with the name that perf uses.
const kernelFile = "[kernel.kallsyms]"

// encode converts a recording to pprof's format: a function and a location for each
// frame, without its address.
func encode(p *Profile) (*profile.Profile, error) {
	meta, err := json.Marshal(p.Meta)
	if err != nil {
		return nil, err
	}
	nanos := int64(time.Second) / int64(p.Meta.Hz)
	out := &profile.Profile{
		SampleType:        []*profile.ValueType{{Type: "samples", Unit: "count"}, {Type: "cpu", Unit: "nanoseconds"}},
		DefaultSampleType: "cpu",
		PeriodType:        &profile.ValueType{Type: "cpu", Unit: "nanoseconds"},
		Period:            nanos,
		TimeNanos:         p.Meta.Began.UnixNano(),
		DurationNanos:     int64(p.Meta.Seconds * 1e9),
		Comments:          []string{string(meta)},
	}
	mappings := make(map[string]*profile.Mapping)
	locations := make([]*profile.Location, len(p.Frames))
	for i, f := range p.Frames {
		file := f.File
		if f.Kernel {
			file = kernelFile
		}
		m := mappings[file]
		if m == nil {
			m = &profile.Mapping{ID: uint64(len(mappings) + 1), File: file, HasFunctions: true}
			mappings[file] = m
			out.Mapping = append(out.Mapping, m)
		}
		fn := &profile.Function{ID: uint64(i + 1), Name: f.Name, SystemName: f.Name, Filename: file}
		out.Function = append(out.Function, fn)
		locations[i] = &profile.Location{ID: uint64(i + 1), Mapping: m, Line: []profile.Line{{Function: fn}}}
	}
	out.Location = locations
	owners := make(map[Task]*profile.Sample) // with shared labels
	for _, s := range p.Samples {
		owner := owners[s.Task]
		if owner == nil {
			owner = labels(s.Task)
			owners[s.Task] = owner
		}
		x := &profile.Sample{Value: []int64{s.Count, s.Count * nanos}, Label: owner.Label, NumLabel: owner.NumLabel}
		x.Location = make([]*profile.Location, len(s.Stack))
		for i, frame := range s.Stack {
			x.Location[i] = locations[frame]
		}
		out.Sample = append(out.Sample, x)
	}
	return out, nil
}

func labels(w Task) *profile.Sample {
	s := &profile.Sample{Label: make(map[string][]string)}
	for _, l := range w.labels() {
		if *l.text != "" {
			s.Label[l.key] = []string{*l.text}
		}
	}
	if w.Pid > 0 {
		s.NumLabel = map[string][]int64{labelPid: {int64(w.Pid)}}
	}
	return s
}

// decode is the inverse of encode. The file is untrusted.
func decode(in *profile.Profile) (*Profile, error) {
	p := &Profile{}
	if len(in.Comments) == 0 || !strings.HasPrefix(in.Comments[0], "{") {
		return nil, fmt.Errorf("%w: it is a pprof profile of another program, without the number of CPUs", ErrFormat)
	}
	if err := json.Unmarshal([]byte(in.Comments[0]), &p.Meta); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrFormat, err)
	}
	if err := p.Meta.validate(); err != nil {
		return nil, err
	}
	m := &p.Meta
	m.Host, m.Kernel, m.Container = printable(m.Host), printable(m.Kernel), printable(m.Container)
	for i, g := range m.Gaps {
		m.Gaps[i] = printable(g)
	}
	frames := make(map[*profile.Location]int, len(in.Location))
	for _, l := range in.Location {
		f := Frame{Name: "?"}
		if len(l.Line) > 0 && l.Line[0].Function != nil {
			f.Name = printable(l.Line[0].Function.Name)
		}
		if l.Mapping != nil {
			f.File = printable(l.Mapping.File)
		}
		if f.File == kernelFile {
			f.Kernel, f.File = true, ""
		}
		frames[l] = len(p.Frames)
		p.Frames = append(p.Frames, f)
	}
	for _, x := range in.Sample {
		if len(x.Value) == 0 || x.Value[0] < 0 || x.Value[0] > 1<<40 {
			return nil, fmt.Errorf("%w: a sample counts %v", ErrFormat, x.Value)
		}
		s := Sample{Count: x.Value[0]}
		for _, l := range s.Task.labels() {
			*l.text = printable(strings.Join(x.Label[l.key], " "))
		}
		if pid := x.NumLabel[labelPid]; len(pid) > 0 {
			s.Task.Pid = int(pid[0])
		}
		for _, l := range x.Location {
			i, ok := frames[l]
			if !ok {
				return nil, fmt.Errorf("%w: a stack refers to a missing function", ErrFormat)
			}
			s.Stack = append(s.Stack, i)
		}
		p.Samples = append(p.Samples, s)
	}
	return p, nil
}

// printable returns an untrusted name as one line without control characters.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if r == utf8.RuneError || !unicode.IsPrint(r) {
			return '?'
		}
		return r
	}, s)
}
