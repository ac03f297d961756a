package cli

import (
	"fmt"
	"io"
	"time"

	"github.com/docker/go-units"

	"holdfast"
	"holdfast/internal/hosts/gc"
)

// size formats bytes; below 0 is unknown.
func size(n int64) string {
	if n < 0 {
		return "?"
	}
	return units.BytesSize(float64(n))
}

func diskLine(d gc.Disk, l gc.Level) string {
	if d.Total == 0 {
		return "disk: not visible from here"
	}
	s := fmt.Sprintf("disk: %.1f%% used, %s free of %s", 100*float64(d.Used())/float64(d.Total), size(d.Free), size(d.Total))
	if d.Inodes > 0 {
		s += fmt.Sprintf(", %.1f%% of inodes used", 100*float64(d.Inodes-d.FreeInodes)/float64(d.Inodes))
	}
	return s + ": " + levelWords(l)
}

func levelWords(l gc.Level) string {
	switch l {
	case gc.Roomy:
		return "under the low mark"
	case gc.Between:
		return "between the low and the high mark"
	case gc.Pressed:
		return "over the high mark"
	}
	return "over the critical mark"
}

func planText(w io.Writer, p gc.Proposal) {
	fmt.Fprintln(w, diskLine(p.Disk, p.Level))
	printEach(w, "notice", p.Notices)
	if len(p.Deletions) == 0 {
		fmt.Fprintln(w, "nothing would be deleted")
		return
	}
	fmt.Fprintln(w, "KIND\tNAME\tFREES\tWHY\tRULE")
	for _, d := range p.Deletions {
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\n", d.Kind, refsName(d.Name, d.Refs), size(d.Bytes), clean(d.Reason), clean(d.Rule))
	}
	unknown := ""
	if p.Unknown > 0 {
		unknown = fmt.Sprintf(", and %d of unknown size", p.Unknown)
	}
	fmt.Fprintf(w, "%s, which free %s%s\n", count(len(p.Deletions), "deletion"), size(p.Bytes), unknown)
}

func (a *app) objectsText(w io.Writer, l gc.Inventory) {
	fmt.Fprintln(w, diskLine(l.Disk, l.Level))
	printEach(w, "notice", l.Notices)
	if len(l.Objects) == 0 {
		fmt.Fprintln(w, "no objects")
		return
	}
	fmt.Fprintln(w, "KIND\tNAME\tSIZE\tSHARED\tLAST USE\tSTAYS")
	for _, o := range l.Objects {
		stays := clean(o.Kept)
		if o.Rule != "" {
			stays = "no: " + clean(o.Rule)
		}
		shared := "-"
		if o.Kind == gc.Images {
			shared = size(o.Shared)
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\n", o.Kind, refsName(o.Name, o.Refs), size(o.Bytes), shared, age(l.At, o.LastUse), stays)
	}
	fmt.Fprintf(w, "%s; all images are %s\n", count(len(l.Objects), "object"), size(l.Bytes))
}

// refsName returns an object's name, and the number of its others.
func refsName(name string, refs []string) string {
	if len(refs) < 2 {
		return objectName(name)
	}
	return fmt.Sprintf("%s (+%d)", objectName(name), len(refs)-1)
}

// objectName shortens the ids of images without a name.
func objectName(s string) string {
	const id = len("sha256:") + 64
	if len(s) == id {
		return s[:len("sha256:")+12]
	}
	return dash(s)
}

// outcomeLine prints the outcome of one deletion.
func outcomeLine(o gc.Outcome, deleted bool) string {
	if !deleted {
		return fmt.Sprintf("kept     %s %s: %s", o.Kind, objectName(o.Name), clean(o.Reason))
	}
	s := fmt.Sprintf("deleted  %s %s: %s (engine %s, waited %s", o.Kind, objectName(o.Name), clean(o.Reason), o.Locked, o.Waited)
	if o.Forced {
		s += ", beside spin-ups: the disk is critically full"
	}
	return s + ")"
}

func cycleText(w io.Writer, c gc.Cycle) {
	printEach(w, "notice", c.Notices)
	fmt.Fprintf(w, "%s deleted, %d kept, %s freed, in %s of which %s were waiting for spin-ups\n",
		count(len(c.Deleted), "object"), len(c.Skipped), size(max(c.After.Free-c.Before.Free, 0)), c.Took, c.Suspended)
}

func (a *app) gcStatusText(w io.Writer, s gc.Status) {
	fmt.Fprintln(w, diskLine(s.Disk, s.Level))
	fmt.Fprintf(w, "marks: low %v, high %v, critical %v\n", s.Low, s.High, s.Critical)
	switch {
	case s.Running && s.UnderWay > 0:
		fmt.Fprintf(w, "a cycle is running, and waits: %s\n", count(s.UnderWay, "spin-up")+" under way")
	case s.Running:
		fmt.Fprintln(w, "a cycle is running")
	case !s.Enabled:
		fmt.Fprintln(w, "the agent does not collect: gc.enabled is false")
	}
	if s.NoLinks != "" {
		fmt.Fprintf(w, "notice: files are not linked away before a removal: %s\n", clean(s.NoLinks))
	}
	if s.Last != nil {
		fmt.Fprintf(w, "last cycle: %s ago, %d deleted, %d kept\n", age(a.deps.Now(), s.Last.Begun), len(s.Last.Deleted), len(s.Last.Skipped))
	}
	fmt.Fprintf(w, "deletions waited %s for spin-ups, in all cycles\n", time.Duration(s.Suspended).Round(time.Millisecond))
	if s.Beside.Count+s.Without.Count == 0 {
		return
	}
	fmt.Fprintln(w, "\nSPIN-UPS\tCOUNT\tSLOW\tP50\tP99")
	figures := func(name string, f gc.Figures) {
		if f.Count == 0 {
			fmt.Fprintf(w, "%s\t0\t-\t-\t-\n", name)
			return
		}
		fmt.Fprintf(w, "%s\t%d\t%.2f%%\t%s\t%s\n", name, f.Count, f.SlowPercent, f.P50, f.P99)
	}
	figures("beside a deletion", s.Beside)
	figures("without", s.Without)
}

func (a *app) historyText(w io.Writer, list []gc.Cycle) {
	if len(list) == 0 {
		fmt.Fprintln(w, "nothing has been collected")
		return
	}
	fmt.Fprintln(w, "AGE\tWHY\tDELETED\tKEPT\tFREED\tTOOK\tWAITED\tEND")
	for _, c := range list {
		end := "done"
		switch {
		case !c.Ended:
			end = "running, or killed"
		case c.Error != "":
			end = clean(c.Error)
		}
		fmt.Fprintf(w, "%s\t%s\t%d\t%d\t%s\t%s\t%s\t%s\n", age(a.deps.Now(), c.Begun), c.Trigger, len(c.Deleted)+c.More, len(c.Skipped),
			size(max(c.After.Free-c.Before.Free, 0)), c.Took, holdfast.Millis(time.Duration(c.Suspended).Round(time.Millisecond)), end)
	}
}
