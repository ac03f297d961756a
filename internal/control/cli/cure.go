package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strings"
	"time"

	"github.com/docker/go-units"
	"github.com/spf13/cobra"

	"holdfast"
	"holdfast/internal/hosts/doctor/cure"
	"holdfast/internal/hosts/doctor/schedule"
	"holdfast/internal/platform/linux/cgroup"
	"holdfast/internal/platform/linux/proc"
)

// CureDeps are the functions behind cures.
type CureDeps struct {
	// Run carries out a cure, or only inspects.
	Run func(ctx context.Context, c cure.Cure, o cure.Options) (cure.Report, error)
	// Kubepods returns the control groups of a kubelet on this host that a cure can
	// help.
	Kubepods func(ctx context.Context) ([]string, error)
	// Plan determines what a scheduled cure would do now.
	Plan func(ctx context.Context, e schedule.Entry) ([]cure.Report, error)
	// Give gives a template of the configuration a seccomp profile.
	Give func(template, file string) (cure.TemplateEdit, error)
}

// cureFlags are the flags of all cures.
type cureFlags struct {
	apply bool
	bytes string
	o     cure.Options
}

// cureCommand makes cmd a command that carries out the cure that choose returns. bounded adds
// the limits of bytes and time.
func (a *app) cureCommand(cmd *cobra.Command, bounded bool, choose func(cmd *cobra.Command, words []string) (cure.Cure, error)) *cobra.Command {
	var f cureFlags
	f.add(cmd, bounded)
	cmd.RunE = func(cmd *cobra.Command, words []string) error {
		c, err := choose(cmd, words)
		if err != nil {
			return err
		}
		return a.printCureRun(cmd, c, &f)
	}
	return cmd
}

func (f *cureFlags) add(cmd *cobra.Command, bounded bool) {
	cmd.Flags().BoolVar(&f.apply, "apply", false, "carry out the cure; without this flag the command only shows what it would do")
	if bounded {
		cmd.Flags().StringVar(&f.bytes, "bytes", "1GiB", "free at most that much")
		cmd.Flags().DurationVar(&f.o.For, "for", cure.DefaultFor, "take at most that long")
	}
}

func (f *cureFlags) options(cmd *cobra.Command) (cure.Options, error) {
	f.o.Apply = f.apply
	if f.bytes != "" {
		n, err := units.RAMInBytes(f.bytes)
		if err != nil || n < 1<<20 || n > cure.MaxBytes {
			return f.o, usage(cmd, fmt.Errorf("--bytes is %q, it must be a size from 1MiB to 1TiB", f.bytes))
		}
		f.o.Bytes = n
		if f.o.For < time.Second || f.o.For > cure.MaxFor {
			return f.o, usage(cmd, fmt.Errorf("--for is %v, it must be from 1s to %v", f.o.For, cure.MaxFor))
		}
	}
	return f.o, nil
}

func (a *app) cureCmd() *cobra.Command {
	return group(&cobra.Command{
		Use:   "cure",
		Short: "Carry out a cure that the doctor advises, or show what it would do",
		Long: "Carry out a cure that `holdfast doctor` advises. Without --apply the command only shows what it would do, the affected\n" +
			"containers, the gain and the risk. A cure has limits of bytes and time, stops if the affected containers\n" +
			"begin to stall, and measures before and after. docs/doctor-cures.md describes each cure with its figures.",
		Example: "  holdfast doctor cure memcg\n  holdfast doctor cure memcg --cgroup /docker --apply",
	}, a.cureMemcg(), a.curePinned(), a.cureDentries(), a.cureFadvise(), a.cureSysctl(), a.cureDropSlab(), a.cureDropCaches(), a.cureHistory(), a.cureSchedule(), a.cureAllow())
}

// printCureRun runs a cure and prints its report.
func (a *app) printCureRun(cmd *cobra.Command, c cure.Cure, f *cureFlags) error {
	o, err := f.options(cmd)
	if err != nil {
		return err
	}
	ctx, cancel := a.limited(cmd, noLimit)
	defer cancel()
	r, err := a.runCure(ctx, c, o, "cure "+c.Name)
	if err != nil && !r.Applied {
		return err
	}
	return errors.Join(err, a.ui.result(r, func(w io.Writer) { printCure(w, r) }))
}

// runCure runs a cure, and shows what as its progress if the cure is carried out.
func (a *app) runCure(ctx context.Context, c cure.Cure, o cure.Options, what string) (cure.Report, error) {
	if o.Apply {
		defer a.ui.progress(what)()
	}
	return a.deps.Cures.Run(ctx, c, o)
}

func (a *app) cureMemcg() *cobra.Command {
	var f cureFlags
	var cgroup string
	var self, kubepods bool
	cmd := &cobra.Command{
		Use:   "memcg",
		Short: "Free dying memory cgroups by a gentle reclaim at their parent",
		Long: "Free dying memory cgroups, and keep the page cache of the living ones: the kernel reclaims a little at their parent, and\n" +
			"takes the pages of the dying groups first. On cgroup v1 the parent's limit is lowered below its usage and restored at once,\n" +
			"with a guardian that undoes it; on v2 memory.reclaim does the same.\n\n" +
			"With --self the command empties its own group: the last step of a container before its removal\n" +
			"(as a preStop hook), so that the group does not stay as a dying one. It needs only that group's own files.\n\n" +
			"With --kubepods it reclaims at each of a kubelet's control groups in turn where that can help: at slices with dead\n" +
			"pods, and at pods with dead containers. --bytes and --for are for each group.",
		Example: "  holdfast doctor cure memcg\n  holdfast doctor cure memcg --kubepods --apply\n  holdfast doctor cure memcg --cgroup /docker --apply\n  holdfast doctor cure memcg --self --apply",
		RunE: func(cmd *cobra.Command, _ []string) error {
			switch {
			case self && (cgroup != "" || kubepods) || kubepods && cgroup != "":
				return usage(cmd, errors.New("--self, --cgroup and --kubepods exclude each other"))
			case kubepods:
				return a.cureKubepods(cmd, &f)
			case self:
				return a.printCureRun(cmd, cure.Self(), &f)
			}
			return a.printCureRun(cmd, cure.Memcg(cgroup), &f)
		},
	}
	f.add(cmd, true)
	cmd.Flags().StringVar(&cgroup, "cgroup", "", "path of the parent (default the group below which dying groups hold most memory)")
	cmd.Flags().BoolVar(&self, "self", false, "empty the group of this process")
	cmd.Flags().BoolVar(&kubepods, "kubepods", false, "reclaim at each of a kubelet's groups where that can help")
	return cmd
}

// cureKubepods reclaims at the groups of a kubelet one after the other. It continues if
// one fails.
func (a *app) cureKubepods(cmd *cobra.Command, f *cureFlags) error {
	o, err := f.options(cmd)
	if err != nil {
		return err
	}
	ctx, cancel := a.limited(cmd, noLimit)
	defer cancel()
	paths, err := a.deps.Cures.Kubepods(ctx)
	if err != nil {
		return err
	}
	reports := []cure.Report{}
	var wrong []error
	for _, path := range paths {
		if ctx.Err() != nil {
			break
		}
		r, err := a.runCure(ctx, cure.Memcg(path), o, "cure memcg, "+clean(path))
		if err == nil || r.Applied {
			reports = append(reports, r)
		}
		if err != nil {
			wrong = append(wrong, fmt.Errorf("%s: %w", path, err))
		}
	}
	err = a.ui.result(reports, func(w io.Writer) {
		for i, r := range reports {
			if i > 0 {
				fmt.Fprintln(w)
			}
			printCure(w, r)
		}
	})
	return errors.Join(append(wrong, err, ctx.Err())...)
}

func (a *app) curePinned() *cobra.Command {
	var paths []string
	cmd := a.cureCommand(&cobra.Command{
		Use:   "pinned",
		Short: "Drop only the pages of files that hold dying memory cgroups",
		Long: "Find the files with pages that are charged to deleted memory cgroups, and drop only these pages. The command searches all\n" +
			"files that processes have open or mapped, and those below --path. Pages that a process has locked cannot be\n" +
			"dropped; the output names the process.",
		Example: "  holdfast doctor cure pinned\n  holdfast doctor cure pinned --path /var/log --apply",
	}, true, func(*cobra.Command, []string) (cure.Cure, error) { return cure.Pinned(paths...), nil })
	cmd.Flags().StringArrayVar(&paths, "path", nil, "another file or directory to search; may be repeated")
	return cmd
}

func (a *app) cureDentries() *cobra.Command {
	var cgroup, container string
	cmd := a.cureCommand(&cobra.Command{
		Use:   "dentries",
		Short: "Reclaim the kernel memory of one container's directory entries",
		Long: "Reclaim kernel memory of one container, most of it directory entries of files that do not exist:\n" +
			"with that container's own reclaim, which does not affect the rest of the host.",
		Example: "  holdfast doctor cure dentries --container web-1\n  holdfast doctor cure dentries --cgroup /docker/ID --apply",
	}, true, func(cmd *cobra.Command, _ []string) (cure.Cure, error) {
		group, err := a.groupOf(cmd, cgroup, container)
		return cure.Dentries(group), err
	})
	cmd.Flags().StringVar(&cgroup, "cgroup", "", "path of the container's control group")
	cmd.Flags().StringVar(&container, "container", "", "name or id of the container")
	return cmd
}

// groupOf returns the control group that is named, directly or by its container.
func (a *app) groupOf(cmd *cobra.Command, path, container string) (string, error) {
	switch {
	case (path == "") == (container == ""):
		return "", usage(cmd, errors.New("one of --container and --cgroup is needed"))
	case path != "":
		return path, nil
	}
	ctx, cancel := a.limited(cmd, askLimit)
	defer cancel()
	e, err := a.deps.OpenEngine(ctx)
	if err != nil {
		return "", err
	}
	defer e.Close()
	c, err := e.Inspect(ctx, container)
	if err != nil {
		return "", err
	}
	mounts, err := cgroup.Find(proc.Host)
	if err != nil {
		return "", err
	}
	group, ok := mounts.MemoryOfContainer(proc.Host, c.Pid, c.ID)
	if !ok {
		return "", holdfast.WithHint(fmt.Errorf("the control group of container %s is unknown: is it running?", container), "name its group with --cgroup")
	}
	return group.Path, nil
}

func (a *app) cureFadvise() *cobra.Command {
	t := cure.FadviseTarget{Edit: a.deps.Cures.Give}
	cmd := a.cureCommand(&cobra.Command{
		Use:   "fadvise",
		Short: "Give containers a seccomp profile in which posix_fadvise does nothing",
		Long: "Write a seccomp profile, the engine's default except that posix_fadvise returns success and does nothing. Assign it to\n" +
			"a template of the configuration, for its next containers. For other containers the command shows the option\n" +
			"of docker run. The program stays unchanged. If it logs by glog, its environment is enough: GLOG_drop_log_memory=false.",
		Example: "  holdfast doctor cure fadvise --template web --apply\n  holdfast doctor cure fadvise --container web-1",
	}, false, func(cmd *cobra.Command, _ []string) (cure.Cure, error) {
		if (t.Template == "") == (t.Container == "") {
			return cure.Cure{}, usage(cmd, errors.New("one of --template and --container is needed"))
		}
		if !filepath.IsAbs(t.File) {
			return cure.Cure{}, usage(cmd, fmt.Errorf("--file is %q, it must be an absolute path", t.File))
		}
		return cure.Fadvise(t), nil
	})
	cmd.Flags().StringVar(&t.Template, "template", "", "the template that gets it")
	cmd.Flags().StringVar(&t.Container, "container", "", "a container without a template; the command shows the option to start it with")
	cmd.Flags().StringVar(&t.File, "file", "/etc/holdfast/seccomp-no-fadvise.json", "path for the profile")
	return cmd
}

func (a *app) cureSysctl() *cobra.Command {
	var undo bool
	cmd := a.cureCommand(&cobra.Command{
		Use:   "sysctl NAME[=VALUE]",
		Short: "Raise a limit of the kernel, or undo that",
		Long: "Change a kernel setting that a finding names, by default to the advised value. Numbers are only raised. The\n" +
			"old value is recorded, and --undo restores it. A reboot undoes it, too; to keep it, put the shown line into\n" +
			"/etc/sysctl.d.\n\nThe settings:\n  " + strings.Join(cure.Settings(), "\n  ") + ".",
		Example:   "  holdfast doctor cure sysctl net.netfilter.nf_conntrack_max --apply\n  holdfast doctor cure sysctl net.netfilter.nf_conntrack_max --undo --apply",
		ValidArgs: cure.Settings(),
		Args:      args(1, 1, "the name of a setting"),
	}, false, func(cmd *cobra.Command, words []string) (cure.Cure, error) {
		ctx, cancel := a.limited(cmd, askLimit)
		defer cancel()
		h, err := a.deps.Host(ctx)
		notes := filepath.Join(h.DataDir, cure.NotesFile)
		if undo {
			return cure.SysctlUndo(words[0], notes), err
		}
		return cure.Sysctl(words[0], notes), err
	})
	cmd.Flags().BoolVar(&undo, "undo", false, "restore the old value")
	return cmd
}

func (a *app) cureDropSlab() *cobra.Command {
	return a.cureCommand(&cobra.Command{
		Use:   "drop-slab",
		Short: "Drop the directory entries and inodes of the whole host, and keep the page cache",
		Long: "Drop the directory entries, the inodes and the other kernel memory of this host that can be reclaimed. The page cache\n" +
			"stays (before Linux 5.16 only that of files that are open). The kernel drops all of it or nothing: the command\n" +
			"refuses to drop more than --bytes. memcg, pinned and dentries affect less.",
		Example: "  holdfast doctor cure drop-slab\n  holdfast doctor cure drop-slab --bytes 4GiB --apply",
	}, true, func(*cobra.Command, []string) (cure.Cure, error) { return cure.DropSlab(), nil })
}

func (a *app) cureDropCaches() *cobra.Command {
	return a.cureCommand(&cobra.Command{
		Use:   "drop-caches",
		Short: "Drop the page cache of the whole host: the last resort",
		Long: "Drop the page cache, the directory entries and the inodes of all containers on this host, which then read from the disks\n" +
			"again. No other cure does this, and Holdfast never does it on its own.",
		Example: "  holdfast doctor cure drop-caches\n  holdfast doctor cure drop-caches --apply",
	}, false, func(*cobra.Command, []string) (cure.Cure, error) { return cure.DropCaches(), nil })
}

func (a *app) cureHistory() *cobra.Command {
	limit := 20
	cmd := &cobra.Command{
		Use: "history", Short: "List the cures that were carried out on this host",
		Long:    "List the cures that were carried out on this host, the newest first.",
		Example: "  holdfast doctor cure history --json",
		RunE: a.within(askLimit, func(ctx context.Context, cmd *cobra.Command, _ []string) error {
			if limit < 0 {
				return usage(cmd, fmt.Errorf("--limit is %d, it must be 0 (all that are kept) or more", limit))
			}
			h, err := a.deps.Host(ctx)
			if err != nil {
				return err
			}
			list, err := cure.Journal{Path: filepath.Join(h.DataDir, cure.FileName)}.List(limit)
			return show(a.ui, list, err, a.printCures)
		}),
	}
	cmd.Flags().IntVar(&limit, "limit", limit, "at most that many; 0: all that are kept")
	return cmd
}

func (a *app) printCures(w io.Writer, list []cure.Report) {
	fmt.Fprintln(w, "AGE\tBY\tCURE\tTARGET\tTOOK\tOUTCOME")
	for _, r := range list {
		outcome, by := "done", "operator"
		if r.Scheduled {
			by = "schedule"
		}
		switch {
		case r.Harm != "":
			outcome = "did harm: " + r.Harm
		case r.Error != "":
			outcome = r.Error
		case r.Stopped != "":
			outcome = "ended early: " + r.Stopped
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%.1f s\t%s\n", age(a.deps.Now(), r.At), by, clean(r.Cure), dash(clean(r.Target)), r.Seconds, clean(outcome))
	}
}

// printCure prints a report as text.
func printCure(w io.Writer, r cure.Report) {
	verb := "would be done"
	if r.Applied {
		verb = "done"
	}
	fmt.Fprintf(w, "cure %s, %s\n", clean(r.Cure), clean(r.Target))
	indented(w, verb, r.Plan.Does)
	fmt.Fprintf(w, "gain: %s\nrisk: %s\n", clean(r.Plan.Gain), clean(r.Plan.Risk))
	indented(w, "use", r.Plan.Shows)
	if len(r.Figures) > 0 {
		fmt.Fprintf(w, "\nFIGURE\tBEFORE\tAFTER\n")
		for _, f := range r.Figures {
			fmt.Fprintf(w, "%s\t%s\t%s\n", clean(f.What), cureFigure(f.Before, f.Unit), cureFigure(f.After, f.Unit))
		}
		fmt.Fprintln(w)
	}
	if r.Applied {
		fmt.Fprintf(w, "it took %.1f s\n", r.Seconds)
	}
	if r.Stopped != "" {
		fmt.Fprintf(w, "it stopped early: %s\n", clean(r.Stopped))
	}
	printEach(w, "note", r.Notes)
	if !r.Applied && len(r.Plan.Does) > 0 {
		fmt.Fprintln(w, "nothing was done: use --apply to carry it out")
	}
}

// indented prints lines below a head; without lines it prints nothing.
func indented(w io.Writer, head string, lines []string) {
	for i, l := range lines {
		if i == 0 {
			fmt.Fprintf(w, "%s:\n", head)
		}
		fmt.Fprintf(w, "  %s\n", clean(l))
	}
}

func cureFigure(v float64, unit string) string {
	if unit == "B" {
		return units.BytesSize(v)
	}
	return fmt.Sprintf("%.0f", v)
}
