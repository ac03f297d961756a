package cli

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"holdfast/internal/hosts/doctor"
	"holdfast/internal/hosts/doctor/baseline"
	"holdfast/internal/hosts/doctor/drill"
	"holdfast/internal/hosts/doctor/fact"
	"holdfast/internal/hosts/doctor/rule"
)

// DoctorRun is one call of `holdfast doctor`.
type DoctorRun struct {
	For  time.Duration
	Step func(string) // gets the current step
	// Baselines are candidates for this host.
	Baselines []baseline.Baseline
}

func (a *app) doctorCmd() *cobra.Command {
	look := 30 * time.Second
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Diagnose what slows down containers on this host: the container, the kernel path, and the cure",
		Long: "Observe this host for a while and report what slows down its containers: the container that causes it, the path\n" +
			"through the kernel, and the cure. Nothing is changed. No agent is needed. Most probes need root;\n" +
			"the report names those that could not run. The exit code is 9 if there is a finding of severity warning or critical.",
		Example: "  holdfast doctor\n  holdfast doctor --for 10s --json",
	}
	group(cmd, a.drillCmd(), a.cureCmd(), a.recordCmd(), a.diffCmd(), a.doctorStatus(), a.doctorHistory(), a.doctorFleet(), a.doctorBaseline())
	cmd.RunE = a.within(noLimit, func(ctx context.Context, cmd *cobra.Command, _ []string) error {
		if look < doctor.MinFor || look > doctor.MaxFor {
			return usage(cmd, fmt.Errorf("--for is %v, it must be from %v to %v", look, doctor.MinFor, doctor.MaxFor))
		}
		step, done := a.ui.steps()
		r, err := a.deps.Examine(ctx, DoctorRun{For: look, Baselines: a.knownBaselines(ctx), Step: step})
		done()
		if err := show(a.ui, r, err, printReport); err != nil {
			return err
		}
		if slices.ContainsFunc(r.Findings, func(f doctor.Finding) bool { return f.Severity != rule.Notice }) {
			return Exit(exitFindings)
		}
		return nil
	})
	cmd.Flags().DurationVar(&look, "for", look, "how long to observe")
	return cmd
}

func (a *app) drillCmd() *cobra.Command {
	var o drill.Options
	var names []string
	list := "The drills:\n"
	for _, d := range drill.All() {
		names = append(names, d.Name)
		where := ""
		if d.Containers {
			where = "; also in containers"
		}
		list += fmt.Sprintf("  %-10s %s (%d %s%s)\n", d.Name, d.Short, d.Size, d.Unit, where)
	}
	cmd := &cobra.Command{
		Use:   "drill NAME",
		Short: "Slow down containers on purpose, for practice, and undo it",
		Long: "Slow down containers on purpose, in temporary control groups or containers, wait, and undo it:\n" +
			"practice for `holdfast doctor` in another terminal. This host is slow meanwhile. It needs root.\n\n" + list +
			"\nThe next drill removes what a killed drill has left.",
		Example:   "  holdfast doctor drill fadvise\n  holdfast doctor drill fadvise --image busybox --for 2m",
		ValidArgs: names,
		Args:      args(1, 1, "the name of a drill"),
		RunE: a.within(noLimit, func(ctx context.Context, cmd *cobra.Command, words []string) error {
			d, err := drill.Find(words[0])
			if err != nil {
				return Usage(err)
			}
			if o.For < time.Second || o.For > drill.MaxFor {
				return usage(cmd, fmt.Errorf("--for is %v, it must be from 1s to %v", o.For, drill.MaxFor))
			}
			if o.Size < 0 || o.Size > d.MaxSize {
				return usage(cmd, fmt.Errorf("--size is %d, it must be from 1 to %d %s", o.Size, d.MaxSize, d.Unit))
			}
			o.Progress = a.ui.err
			var at drill.Running
			o.Ready = func(x drill.Running) { at = x }
			if a.ui.json {
				o.Progress = io.Discard
			}
			if err := a.deps.Drill(ctx, d, o); err != nil {
				return err
			}
			return a.ui.result(at, func(w io.Writer) { fmt.Fprintf(w, "drill %s is over, and everything is removed\n", clean(at.Drill)) })
		}),
	}
	f := cmd.Flags()
	f.DurationVar(&o.For, "for", 30*time.Second, "how long it lasts")
	f.IntVar(&o.Size, "size", 0, "its size (default as listed)")
	f.StringVar(&o.Dir, "dir", "", "directory for its files, on a disk (default /tmp, or /var/tmp if /tmp is in memory)")
	f.StringVar(&o.Image, "image", "", "run it in containers of this image, which must have no entrypoint, such as busybox")
	return cmd
}

// printReport prints a report as text.
func printReport(w io.Writer, r doctor.Report) {
	fmt.Fprintf(w, "observed for %.0f s, Linux %s\n", r.Seconds, dash(r.Kernel))
	printHost(w, r)
	fmt.Fprintln(w)
	for _, f := range r.Findings {
		printFinding(w, f)
	}
	var fine, not []string
	for _, c := range r.Checked {
		switch c.Verdict {
		case doctor.Fine:
			fine = append(fine, c.Rule)
		case doctor.NotJudged:
			not = append(not, fmt.Sprintf("  %s: %s", c.Rule, clean(c.Why)))
		}
	}
	if len(r.Findings) == 0 {
		fmt.Fprint(w, "no findings\n\n")
	}
	if len(fine) > 0 {
		fmt.Fprintf(w, "fine: %s\n", strings.Join(fine, ", "))
	}
	if len(not) > 0 {
		fmt.Fprintf(w, "\nnot judged:\n%s\n", strings.Join(not, "\n"))
	}
	if len(r.Gaps) > 0 {
		fmt.Fprint(w, "\ncould not be observed:\n")
		for _, g := range r.Gaps {
			fmt.Fprintf(w, "  %s: %s\n", clean(g.Sees), clean(g.Why))
			if g.Hint != "" {
				fmt.Fprintf(w, "    %s\n", clean(g.Hint))
			}
		}
	}
}

// printHost prints the state of the host itself, as far as it is known.
func printHost(w io.Writer, r doctor.Report) {
	var s fact.Set
	s.Add(r.Facts...)
	if up, ok := s.Host(fact.HostUptime); ok {
		busy, _ := s.Host(fact.CPUBusy)
		cpus, _ := s.Host(fact.HostCPUs)
		fmt.Fprintf(w, "up %s, %.0f CPUs %.0f %% busy\n", age(time.Time{}.Add(time.Hour+time.Duration(up)*time.Second), time.Time{}.Add(time.Hour)), cpus, 100*busy)
	}
	if cpu, ok := s.Host(fact.CheckCPU); ok {
		memory, _ := s.Host(fact.CheckMem)
		is := ""
		if slices.ContainsFunc(r.Checked, func(c doctor.Check) bool { return c.Rule == "slow-machine" && c.Verdict == doctor.Fine }) {
			is = " is fine"
		}
		line := fmt.Sprintf("the raw machine%s: SHA-256 %.0f MiB/s%s, memory %.0f MiB/s%s", is, cpu, usually(&s, fact.CheckCPU, "%.0f"), memory, usually(&s, fact.CheckMem, "%.0f"))
		if sync, ok := s.Host(fact.CheckDisk); ok {
			line += fmt.Sprintf(", a small write with fdatasync %.1f ms%s", sync, usually(&s, fact.CheckDisk, "%.1f"))
		}
		if read, ok := s.Host(fact.CheckRead); ok {
			line += fmt.Sprintf(", a random read of 4 KiB %.2f ms%s", read, usually(&s, fact.CheckRead, "%.2f"))
		}
		if alloc, ok := s.Host(fact.AllocMs); ok {
			line += fmt.Sprintf(", 128 MiB allocated in %.0f ms", alloc)
		}
		if steal, ok := s.Host(fact.CPUSteal); ok && steal > 0 {
			line += fmt.Sprintf(", %.1f %% of the CPUs' time taken by the hypervisor", 100*steal)
		}
		fmt.Fprintln(w, line)
	}
	var caches []string
	for _, c := range s.Of(fact.SlabCache) {
		caches = append(caches, fmt.Sprintf("%s %.0f MiB", clean(c.Subject.Device), c.Value/(1<<20)))
	}
	if len(caches) > 0 {
		fmt.Fprintf(w, "largest slab caches: %s\n", strings.Join(caches, ", "))
	}
}

// usually returns the median of the agent's tests of the same, "" if it is unknown.
func usually(s *fact.Set, name, format string) string {
	v, ok := s.Host(fact.Past + name)
	if !ok {
		return ""
	}
	return fmt.Sprintf(" (usually "+format+")", v)
}

func printFinding(w io.Writer, f doctor.Finding) {
	fmt.Fprintf(w, "%s: %s [%s]\n", strings.ToUpper(string(f.Severity)), clean(f.Title), f.Rule)
	for _, e := range f.Evidence {
		healthy := ""
		if e.Healthy != "-" {
			healthy = "(healthy: " + clean(e.Healthy) + ")"
		}
		fmt.Fprintf(w, "  %s\t%s\t%s\n", clean(e.What), clean(e.Found), healthy)
	}
	if f.Subject != nil {
		fmt.Fprintf(w, "  by %s\n", subjectLine(*f.Subject))
		if len(f.Subject.User) > 0 {
			fmt.Fprintf(w, "  in the program: %s\n", programLine(f.Subject.Program()))
		}
		if path := kernelPath(f.Subject.Kernel); path != "" {
			fmt.Fprintf(w, "  in the kernel: %s\n", path)
		}
	}
	for _, v := range f.Against {
		if f.Subject == nil || v.Cgroup != f.Subject.Cgroup {
			fmt.Fprintf(w, "  suffering: %s\n", subjectLine(v))
		}
	}
	for _, c := range f.Cures {
		fmt.Fprintf(w, "  cure: %s\n", clean(c.What))
		if c.Command != "" {
			fmt.Fprintf(w, "        %s\n", clean(c.Command))
		}
	}
	fmt.Fprintln(w)
}

// subjectLine names a culprit, the best name first.
func subjectLine(subject doctor.Subject) string {
	var parts []string
	switch {
	case subject.Pod != nil && subject.Pod.Name != "":
		parts = append(parts, podLine(*subject.Pod))
	case subject.Container != "":
		parts = append(parts, fmt.Sprintf("container %s (image %s, id %s)", clean(subject.Container), dash(subject.Image), shortID(subject.ContainerID)))
	case subject.ContainerID != "":
		parts = append(parts, "container "+shortID(subject.ContainerID))
	case subject.Cgroup != "":
		parts = append(parts, "control group "+clean(subject.Cgroup))
	}
	switch {
	case subject.Session != "":
		parts = append(parts, fmt.Sprintf("session %s", clean(subject.Session)))
	case subject.Template != "":
		parts = append(parts, fmt.Sprintf("kept warm for sessions of template %s", clean(subject.Template)))
	}
	if subject.Pid > 0 {
		parts = append(parts, fmt.Sprintf("process %d", subject.Pid))
	}
	if subject.Command != "" {
		parts = append(parts, "command "+clean(subject.Command))
	}
	return strings.Join(parts, ", ")
}

// podLine names a pod, and the container in it.
func podLine(p doctor.Pod) string {
	s := "pod " + clean(p.Namespace) + "/" + clean(p.Name)
	if p.Container != "" {
		s += ", container " + clean(p.Container)
	}
	if p.Workload != "" {
		s += ", of " + clean(p.Workload)
	}
	return s
}

// programLine prints a path through a program: the innermost functions are those that
// called the kernel, the first one says which work it was.
func programLine(path []string) string {
	names := make([]string, len(path))
	for i, name := range path {
		names[i] = clean(name)
	}
	if over := len(names) - maxPathLine; over > 0 {
		names = slices.Concat(names[:1], []string{"…"}, names[over+2:])
	}
	return strings.Join(names, " > ")
}

// kernelPath prints a path from the system call inwards.
func kernelPath(inwards []string) string {
	var names []string
	for _, f := range slices.Backward(inwards) {
		if strings.HasPrefix(f, "entry_") || f == "do_syscall_64" || f == "x64_sys_call" || strings.HasPrefix(f, "el0") {
			continue // common to all system calls
		}
		names = append(names, clean(f))
	}
	return strings.Join(names, " > ")
}
