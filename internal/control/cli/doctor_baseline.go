package cli

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"math"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"holdfast"
	"holdfast/internal/control/api"
	"holdfast/internal/control/api/client"
	"holdfast/internal/hosts/doctor"
	"holdfast/internal/hosts/doctor/baseline"
)

func (a *app) doctorBaseline() *cobra.Command {
	return group(&cobra.Command{
		Use:   "baseline",
		Short: "Save the facts of a healthy host, and compare hosts with them",
		Long: "Save the facts of a healthy host, by kernel and role, and show the facts in which a host differs from it.\n" +
			"Baselines belong to the whole fleet if an agent answers, otherwise to this host. The agent uses the one for its kernel and doctor.role.",
		Example: "  holdfast doctor baseline save\n  holdfast doctor baseline compare",
	}, a.baselineSave(), a.baselineLs(), a.baselineRm(), a.baselineCompare())
}

// localBaselines stores the baselines of this host. It implements api.Doctor.
type localBaselines struct {
	api.DoctorOff
	dir baseline.Dir
	ui  *ui
}

// Baselines lists the readable baselines, and prints the error of the others.
func (l localBaselines) Baselines(context.Context) ([]baseline.Baseline, error) {
	all, err := l.dir.List()
	if err != nil && len(all) > 0 {
		l.ui.note("%s", clean(err.Error()))
		err = nil
	}
	return all, err
}

func (l localBaselines) SaveBaseline(_ context.Context, b baseline.Baseline) error {
	return l.dir.Save(b)
}

func (l localBaselines) RemoveBaseline(_ context.Context, name string) error {
	return l.dir.Remove(name)
}

// baselinesIn is where a host without an agent keeps its baselines.
func baselinesIn(h Host) baseline.Dir {
	return baseline.Dir(filepath.Join(h.DataDir, baseline.DirName))
}

// withBaselines calls do with the fleet's baselines, or with this host's if no agent
// answers.
func (a *app) withBaselines(cmd *cobra.Command, limit time.Duration, do func(ctx context.Context, c *client.Client, h Host) error) error {
	ctx, cancel := a.limited(cmd, limit)
	defer cancel()
	host, err := a.deps.Host(ctx)
	if err != nil {
		return err
	}
	return a.agentOrHost(ctx, func(h Host, _ error) (hostParts, error) {
		a.ui.note("no agent answers: using this host's baselines")
		return hostParts{Parts: api.Parts{Doctor: localBaselines{dir: baselinesIn(h), ui: a.ui}}}, nil
	}, func(c *client.Client) error { return do(ctx, c, host) })
}

// knownBaselines returns the baselines for the doctor's rules; none if they cannot be
// read.
func (a *app) knownBaselines(ctx context.Context) []baseline.Baseline {
	ctx, cancel := context.WithTimeout(ctx, askLimit/2)
	defer cancel()
	host, err := a.deps.Host(ctx)
	if err != nil {
		return nil
	}
	all, _ := baselinesIn(host).List()
	if c, err := a.agent(); err == nil && a.remoteURL() == "" {
		defer c.Close()
		if more, err := c.Baselines(ctx); err == nil {
			all = append(all, more...)
		}
	}
	return all
}

// observeFlags are the flags of an observation of this host.
type observeFlags struct {
	length time.Duration
	role   string
}

func (f *observeFlags) add(cmd *cobra.Command) {
	cmd.Flags().DurationVar(&f.length, "for", 30*time.Second, "how long to observe")
	cmd.Flags().StringVar(&f.role, "role", "", "the purpose of this host (default doctor.role of the configuration)")
}

func (f *observeFlags) check(cmd *cobra.Command) error {
	if f.length < doctor.MinFor || f.length > doctor.MaxFor {
		return usage(cmd, fmt.Errorf("--for is %v, it must be from %v to %v", f.length, doctor.MinFor, doctor.MaxFor))
	}
	return nil
}

// observe observes this host and makes a baseline of it.
func (a *app) observe(ctx context.Context, f observeFlags, name string, h Host) (baseline.Baseline, doctor.Report, error) {
	step, done := a.ui.steps()
	r, err := a.deps.Examine(ctx, DoctorRun{For: f.length, Step: step})
	done()
	if err != nil {
		return baseline.Baseline{}, r, err
	}
	role := cmp.Or(f.role, h.Role)
	b := baseline.New(name, role, holdfast.NodeID(h.Node), a.deps.Now(), r.Seconds, r.Facts)
	if b.Kernel == "" {
		b.Kernel = r.Kernel
		if name == "" {
			b.Name = baseline.DefaultName(role, b.Kernel)
		}
	}
	return b, r, nil
}

func (a *app) baselineSave() *cobra.Command {
	var (
		f       observeFlags
		profile string
		force   bool
	)
	cmd := &cobra.Command{
		Use:   "save [NAME]",
		Short: "Observe this host and save its facts as those of a healthy host",
		Long: "Observe this host and save its facts as those of a healthy host. Run it under the usual load. The default NAME is made of the role and the kernel.\n" +
			"A host with a finding is not healthy: it is refused without --force.",
		Example: "  holdfast doctor baseline save\n  holdfast doctor baseline save web-good --role web --profile good.pb.gz",
		Args:    args(0, 1, "at most one name"),
		RunE: func(cmd *cobra.Command, words []string) error {
			name := strings.Join(words, "")
			if name != "" {
				if err := baseline.CheckName(name); err != nil {
					return Usage(err)
				}
			}
			if err := f.check(cmd); err != nil {
				return err
			}
			return a.withBaselines(cmd, noLimit, func(ctx context.Context, s *client.Client, h Host) error {
				var p *baseline.Profile
				if profile != "" {
					var err error
					if p, err = baseline.ReadProfile(profile); err != nil {
						return err
					}
				}
				b, r, err := a.observe(ctx, f, name, h)
				if err != nil {
					return err
				}
				if len(r.Findings) > 0 && !force {
					return holdfast.WithHint(fmt.Errorf("this host is not healthy: %s", r.Findings[0].Title), "see `holdfast doctor`, or save it with --force")
				}
				b.Profile = p
				if err := b.Validate(); err != nil {
					return err
				}
				if err := s.SaveBaseline(ctx, b); err != nil {
					return err
				}
				return a.ui.result(b, func(w io.Writer) { fmt.Fprintf(w, "saved baseline %s with %d facts\n", clean(b.Name), len(b.Facts)) })
			})
		},
	}
	f.add(cmd)
	cmd.Flags().StringVar(&profile, "profile", "", "a recording of this host for the baseline (holdfast doctor record): its name, size and SHA-256 are kept")
	cmd.Flags().BoolVar(&force, "force", false, "save the baseline in spite of findings")
	return cmd
}

func (a *app) baselineLs() *cobra.Command {
	return &cobra.Command{
		Use:     "ls",
		Short:   "List the baselines",
		Long:    "List the baselines of the fleet, or of this host if no agent answers, by name.",
		Example: "  holdfast doctor baseline ls\n  holdfast doctor baseline ls --json",
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.withBaselines(cmd, askLimit, func(ctx context.Context, s *client.Client, _ Host) error {
				all, err := s.Baselines(ctx)
				return show(a.ui, all, err, func(w io.Writer, all []baseline.Baseline) {
					fmt.Fprintln(w, "NAME\tKERNEL\tROLE\tNODE\tAGE\tFACTS\tPROFILE")
					for _, b := range all {
						profile := "-"
						if b.Profile != nil {
							profile = clean(b.Profile.File)
						}
						fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%d\t%s\n", clean(b.Name), dash(b.Kernel), dash(b.Role), dash(string(b.Node)), age(a.deps.Now(), b.At), len(b.Facts), profile)
					}
				})
			})
		},
	}
}

func (a *app) baselineRm() *cobra.Command {
	return &cobra.Command{
		Use:     "rm NAME",
		Short:   "Remove a baseline",
		Long:    "Remove a baseline from the fleet, or from this host if no agent answers.",
		Example: "  holdfast doctor baseline rm ci-6.1.0-18-amd64",
		Args:    args(1, 1, "the name of a baseline"),
		RunE: func(cmd *cobra.Command, words []string) error {
			if err := baseline.CheckName(words[0]); err != nil {
				return Usage(err)
			}
			return a.withBaselines(cmd, askLimit, func(ctx context.Context, s *client.Client, _ Host) error {
				if err := s.RemoveBaseline(ctx, words[0]); err != nil {
					return err
				}
				return a.ui.result(map[string]any{"removed": words[0]}, func(w io.Writer) { fmt.Fprintf(w, "removed baseline %s\n", words[0]) })
			})
		},
	}
}

func (a *app) baselineCompare() *cobra.Command {
	var f observeFlags
	limit := 20
	cmd := &cobra.Command{
		Use:   "compare [NAME]",
		Short: "Observe this host and show how it differs from a healthy one",
		Long: "Observe this host and show the facts in which it differs from a baseline, the largest difference first: the factor, the healthy value and the current one.\n" +
			"The default is the newest baseline of this kernel and role. Small values count as nearly equal: 3 stalls a second instead of none are a factor of 4.",
		Example: "  holdfast doctor baseline compare\n  holdfast doctor baseline compare web-good --for 10s --json",
		PreRunE: func(cmd *cobra.Command, _ []string) error { return atLeast(cmd, "limit", limit, 1) },
		Args:    args(0, 1, "at most one name"),
		RunE: func(cmd *cobra.Command, words []string) error {
			if err := f.check(cmd); err != nil {
				return err
			}
			return a.withBaselines(cmd, noLimit, func(ctx context.Context, s *client.Client, h Host) error {
				all, err := s.Baselines(ctx)
				if err != nil {
					return err
				}
				i := -1
				if len(words) > 0 {
					if i = slices.IndexFunc(all, func(b baseline.Baseline) bool { return b.Name == words[0] }); i < 0 {
						return holdfast.WithHint(fmt.Errorf("baseline %s: %w", clean(words[0]), holdfast.ErrNotFound), "see `holdfast doctor baseline ls`")
					}
				}
				now, _, err := a.observe(ctx, f, "", h)
				if err != nil {
					return err
				}
				var b baseline.Baseline
				if i >= 0 {
					b = all[i]
				} else if b, err = baseline.Choose(all, now.Kernel, now.Role); err != nil {
					return err
				}
				c := baseline.Compare(b, now)
				return a.ui.result(c, func(w io.Writer) { a.comparisonText(w, c, limit) })
			})
		},
	}
	f.add(cmd)
	cmd.Flags().IntVar(&limit, "limit", limit, "show at most that many facts")
	return cmd
}

// leastFactor is the smallest difference that is shown.
const leastFactor = 1.25

func (a *app) comparisonText(w io.Writer, c baseline.Comparison, limit int) {
	fmt.Fprintf(w, "compared with baseline %s of %s, %s old\n", clean(c.Baseline.Name), dash(string(c.Baseline.Node)), age(a.deps.Now(), c.Baseline.At))
	printEach(w, "notice", c.Notices)
	shown := 0
	for _, d := range c.Differences {
		if math.Abs(math.Log(d.Factor)) < math.Log(leastFactor) || shown == limit {
			break
		}
		if shown++; shown == 1 {
			fmt.Fprintln(w, "\nFACT\tTIMES\tHEALTHY\tNOW")
		}
		fmt.Fprintf(w, "%s\t%.3g\t%s\t%s\n", clean(d.Name), d.Factor, figure(d.Healthy, d.Unit), figure(d.Now, d.Unit))
	}
	if shown == 0 {
		fmt.Fprintf(w, "no fact differs by a factor of %v or more\n", leastFactor)
	}
	if len(c.Missing) > 0 {
		fmt.Fprintf(w, "\nunknown here now: %s\n", clean(strings.Join(c.Missing, ", ")))
	}
}
