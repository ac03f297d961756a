package move

import (
	"bytes"
	"fmt"
	"time"

	"holdfast/bench"
)

// Many is the result of a drain of many sessions.
type Many struct {
	Sessions   int     `json:"sessions"`
	WithMemory int     `json:"with_memory"` // continued with their memory, on the same socket
	ImageMiB   float64 `json:"image_mib"`   // of one, on average
	DrainMS    float64 `json:"drain_ms"`
	Said       string  `json:"said,omitempty"` // text of the drain's report
	next       []float64
}

// Details are the details of this bench's result.
type Details struct {
	Many     *Many       `json:"many,omitempty"`
	Forks    *ForkMemory `json:"forks,omitempty"`
	Failures []string    `json:"failures,omitempty"`
	NoticeMS float64     `json:"notice_ms"`
}

// findings are the samples.
type findings struct {
	machine    bench.Machine
	notice     time.Duration
	cold       []boot
	awake      []boot // small sessions that were resumed
	awakeLarge []boot
	small      []sample
	large      []sample
	forks      *forks
	many       *Many
	failures   []string
}

// Names of the rows.
const (
	rowCold       = "cold boot: connect to the first byte"
	rowAwake      = "resume from suspend: connect to the first byte"
	rowSmall      = "small session moved: notice to the next byte"
	rowAwakeLarge = "256 MiB session resumed from suspend: connect to the first byte"
	rowLarge      = "256 MiB session moved: notice to the next byte"
	rowSilence    = "snapshot: longest time to an answer of the session"
	rowPause      = "fork: the pause, as reported: runsc's checkpoint"
	rowChild      = "fork: request to a child that is ready"
	rowChildren   = "fork: request to all children ready"

	rowMany  = "many drained at once: notice to the next byte"
	rowTyped = "small session moved: notice to the shell's next answer"
)

func (f findings) result() bench.Result {
	r := bench.Result{Name: "move", Machine: f.machine, Failed: len(f.failures), Scale: "cold boot p50 ÷ move p50 of a small session"}
	cold := bench.NewRow(rowCold, "ms", column(f.cold, whole))
	moved := bench.NewRow(rowSmall, "ms", column(f.small, func(s sample) time.Duration { return s.next }))
	awake := bench.NewRow(rowAwake, "ms", column(f.awake, whole))
	r.Rows = append(r.Rows, cold)
	r.Rows = append(r.Rows, bootRows(f.cold)...)
	r.Rows = append(r.Rows, awake)
	r.Rows = append(r.Rows, bootRows(f.awake)...)
	r.Rows = append(r.Rows, moved, bench.NewRow(rowTyped, "ms", column(f.small, func(s sample) time.Duration { return s.answer })))
	r.Rows = append(r.Rows, partRows(f.small)...)
	if len(f.large) > 0 {
		r.Rows = append(r.Rows, bench.NewRow(rowAwakeLarge, "ms", column(f.awakeLarge, whole)))
		r.Rows = append(r.Rows, bootRows(f.awakeLarge)...)
		r.Rows = append(r.Rows, bench.NewRow(rowLarge, "ms", column(f.large, func(s sample) time.Duration { return s.next })))
		r.Rows = append(r.Rows, partRows(f.large)...)
	}
	if k := f.forks; k != nil {
		same := func(d time.Duration) time.Duration { return d }
		for _, row := range []struct {
			name string
			of   []time.Duration
		}{{rowSilence, k.silence}, {rowPause, k.pause}, {rowChild, k.ready}, {rowChildren, k.all}} {
			r.Rows = append(r.Rows, bench.NewRow(row.name, "ms", column(row.of, same)))
		}
		r.Notes = append(r.Notes, fmt.Sprintf("each fork of a session of 64 MiB started %d children", k.children),
			fmt.Sprintf("memory of the session before the fork: %v", k.memory.Parent),
			fmt.Sprintf("memory of a child, mean of %d: %v", k.memory.Children.Sessions, k.memory.Children))
	}
	if f.many != nil {
		r.Rows = append(r.Rows, bench.NewRow(rowMany, "ms", f.many.next))
		r.Notes = append(r.Notes, fmt.Sprintf("%d sessions were drained at once, with a notice of %v: %d with their memory, images of %.0f MiB each; the drain took %.1f s",
			f.many.Sessions, f.notice, f.many.WithMemory, f.many.ImageMiB, f.many.DrainMS/1000))
		if f.many.Said != "" {
			r.Notes = append(r.Notes, "the drain says: "+f.many.Said)
		}
	}
	if moved.P50 > 0 {
		r.Score = cold.P50 / moved.P50
	}
	if cold.P50 > 0 {
		r.Notes = append(r.Notes, fmt.Sprintf("a resume's p50 is %.2f times that of a cold boot", awake.P50/cold.P50))
	}
	if len(f.small) > 0 {
		r.Notes = append(r.Notes, fmt.Sprintf("a small session's image has %.1f MiB%s", meanImage(f.small), ofLarge(f.large)))
	}
	r.Notes = append(r.Notes, f.failures...)
	details := Details{Many: f.many, Failures: f.failures, NoticeMS: millis(f.notice)}
	if f.forks != nil {
		details.Forks = &f.forks.memory
	}
	r.Details = details
	return r
}

func ofLarge(s []sample) string {
	if len(s) == 0 {
		return ""
	}
	return fmt.Sprintf(", a large one's %.0f MiB", meanImage(s))
}

// meanImage returns the mean size of the images, in MiB.
func meanImage(all []sample) (sum float64) {
	for _, s := range all {
		sum += s.image / (1 << 20) / float64(len(all))
	}
	return sum
}

func partRows(all []sample) (rows []bench.Row) {
	for i, name := range parts {
		rows = append(rows, bench.NewRow("  "+name, "ms", column(all, func(s sample) time.Duration { return s.parts[i] })))
	}
	return rows
}

func bootRows(all []boot) (rows []bench.Row) {
	for i, name := range bootParts {
		rows = append(rows, bench.NewRow("  "+name, "ms", column(all, func(b boot) time.Duration { return b.parts[i] })))
	}
	return rows
}

func whole(b boot) time.Duration { return b.took }

func column[S any](all []S, f func(S) time.Duration) (ms []float64) {
	for _, s := range all {
		ms = append(ms, millis(f(s)))
	}
	return ms
}

// The table is between these lines of the page.
const (
	pageBegin = "<!-- move: holdfast bench move --write docs/moving.md writes it -->\n"
	pageEnd   = "<!-- end of the table of moves -->\n"
)

// WritePage replaces the result in a page by a result of Run.
func WritePage(path string, r bench.Result) error {
	var b bytes.Buffer
	fmt.Fprint(&b, "| ms | n | p50 | p99 | most |\n|---|---|---|---|---|\n")
	for _, row := range r.Rows {
		name := row.Name
		if name[0] != ' ' {
			name = "**" + name + "**"
		}
		fmt.Fprintf(&b, "| %s | %d | %.0f | %.0f | %.0f |\n", name, row.N, row.P50, row.P99, row.Max)
	}
	m := r.Machine
	fmt.Fprintf(&b, "\nOn %d CPUs (%s), %.0f GiB, Linux %s, %s. Score %.2f, failed %d.\n", m.CPUs, m.Model, float64(m.Memory)/(1<<30), m.Kernel, m.Engine, r.Score, r.Failed)
	for _, n := range r.Notes {
		fmt.Fprintf(&b, "- %s\n", n)
	}
	return bench.WritePage(path, pageBegin, pageEnd, b.Bytes())
}
