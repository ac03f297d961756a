package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"holdfast/internal/hosts/protect"
	"holdfast/internal/hosts/protect/install"
	"holdfast/internal/hosts/protect/keep"
	"holdfast/internal/hosts/protect/ready"
	"holdfast/internal/hosts/protect/unit"
	"holdfast/internal/platform/sdnotify"
)

// unitFlags are the flags of `holdfast protect install --unit`.
type unitFlags struct {
	name        string
	limit       time.Duration
	drain       time.Duration
	ready       string
	keep        keepFlags
	restartOnly bool
	dryRun      bool
}

// ofUnits are the names of the flags that need --unit.
var ofUnits = [...]string{"hold-limit", "drain", "ready", "keep", "keep-for", "restart-only", "dry-run"}

func (u *unitFlags) add(f *pflag.FlagSet) {
	f.StringVar(&u.name, "unit", "", "systemd service whose restarts and reloads are to be protected")
	f.DurationVar(&u.limit, "hold-limit", 30*time.Second, "with --unit: longest time to hold connections")
	f.DurationVar(&u.drain, "drain", time.Second, "with --unit: longest time that a restart waits for running requests")
	f.StringVar(&u.ready, "ready", string(ready.Auto), "with --unit: when the new server is ready, as for protect")
	u.keep.add(f, "with --unit: ")
	f.BoolVar(&u.restartOnly, "restart-only", false, "with --unit: do not protect reloads, for a server that keeps its sockets in a reload")
	f.BoolVar(&u.dryRun, "dry-run", false, "with --unit: print the files, and write none")
}

// validate refuses invalid flags.
func (u *unitFlags) validate(cmd *cobra.Command) error {
	if u.name == "" {
		for _, name := range ofUnits {
			if cmd.Flags().Changed(name) {
				return fmt.Errorf("--%s needs --unit", name)
			}
		}
		return nil
	}
	if u.drain < 0 || u.limit <= u.drain || u.limit > time.Hour {
		return fmt.Errorf("--drain is %v and --hold-limit is %v: the drain must be at least 0, and the limit over it and at most 1h", u.drain, u.limit)
	}
	if _, err := ready.Parse(u.ready); err != nil {
		return fmt.Errorf("--ready: %w", err)
	}
	return u.keep.validate(u.drain)
}

// withSystemd calls do with a connection to systemd.
func withSystemd(ctx context.Context, do func(*unit.Manager) error) error {
	if err := protect.NeedsRoot(); err != nil {
		return err
	}
	m, err := unit.Connect(ctx)
	if err != nil {
		return err
	}
	defer m.Close()
	return do(m)
}

// unitInstall is `holdfast protect install --unit`.
func (a *app) unitInstall(ctx context.Context, u unitFlags, as []protect.Address, backend protect.Name) error {
	program, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find this program: %w", err)
	}
	return withSystemd(ctx, func(m *unit.Manager) error {
		service, err := m.Loaded(ctx, u.name)
		if err != nil {
			return err
		}
		s := unit.Settings{
			Service: service, Addresses: as, Backend: backend, Timeout: u.limit, Drain: u.drain,
			Ready: u.ready, Keep: keep.Clients(u.keep.clients), KeepFor: u.keep.life, RestartOnly: u.restartOnly, Program: program,
		}
		if u.dryRun {
			return a.unitFiles(s.Files(unit.Dir))
		}
		if err := unit.Install(ctx, m, unit.Dir, s); err != nil {
			return err
		}
		states, err := unit.Status(ctx, m, unit.Dir)
		if err != nil {
			return err
		}
		if err := a.ui.result(states, func(w io.Writer) { writeUnits(w, states) }); err != nil {
			return err
		}
		a.ui.note("restarts of %s are protected from now on; `holdfast protect history` shows them", service)
		return nil
	})
}

// unitFiles prints the files of a unit.
func (a *app) unitFiles(files []unit.File) error {
	return a.ui.result(files, func(w io.Writer) {
		for _, f := range files {
			fmt.Fprintf(w, "# %s\n%s\n", f.Path, f.Text)
		}
	})
}

// unitRemove ends the protection of a unit; "": of all units.
func (a *app) unitRemove(ctx context.Context, name string) error {
	all, err := unit.Installed(unit.Dir)
	if err != nil {
		return err
	}
	if name == "" && len(all) == 0 {
		return nil // there may be no systemd
	}
	return withSystemd(ctx, func(m *unit.Manager) error {
		if name != "" {
			service := unit.FullName(name)
			// Its own unit may have been removed since.
			if full, err := m.Loaded(ctx, name); err == nil {
				service = full
			} else if !errors.Is(err, unit.ErrNoUnit) {
				return err
			}
			all = []unit.Settings{{Service: service}}
		}
		for _, s := range all {
			if err := unit.Remove(ctx, m, unit.Dir, s.Service); err != nil {
				return err
			}
			a.ui.note("%s is not protected any more", s.Service)
		}
		return nil
	})
}

// unitStates returns the protected units; none where systemd does not run.
func unitStates(ctx context.Context) (states []unit.State, err error) {
	all, err := unit.Installed(unit.Dir)
	if err != nil || len(all) == 0 {
		return nil, err
	}
	err = withSystemd(ctx, func(m *unit.Manager) error {
		states, err = unit.Status(ctx, m, unit.Dir)
		return err
	})
	return states, err
}

// protectStatus prints the installed ports and the protected units.
func (a *app) protectStatus(s install.State, units []unit.State) error {
	if len(units) == 0 {
		return a.installed(s, nil)
	}
	if a.ui.json {
		return a.ui.result(struct {
			install.State
			Units []unit.State `json:"units"`
		}{s, units}, nil)
	}
	if len(s.Ports) > 0 {
		if err := a.installed(s, nil); err != nil {
			return err
		}
	}
	return a.ui.result(units, func(w io.Writer) { writeUnits(w, units) })
}

func writeUnits(w io.Writer, units []unit.State) {
	fmt.Fprintln(w, "UNIT\tSTATE\tPROTECTED\tRELOADS\tPORTS\tBACKEND\tNOW")
	for _, u := range units {
		ports := "those of the unit"
		for i, a := range u.Addresses {
			if i == 0 {
				ports = a.String()
			} else {
				ports += ", " + a.String()
			}
		}
		now := "-"
		if u.Holding {
			now = "holding"
		}
		protected := "yes"
		if !u.Guarded {
			protected = "from its next start"
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s\n", u.Service, u.Active, protected, yesNo(!u.RestartOnly), ports, u.Backend, now)
	}
}

// protectGuardCmd is the command of the units that wait beside a protected service.
func (a *app) protectGuardCmd() *cobra.Command {
	return &cobra.Command{
		Use: "guard UNIT", Hidden: true, Args: args(1, 1, "a unit"),
		RunE: func(cmd *cobra.Command, words []string) error {
			return withSystemd(cmd.Context(), func(m *unit.Manager) error { return unit.Guard(cmd.Context(), m, words[0]) })
		},
	}
}

// jobWait is how long a job waits for the lock of its ports. A protect that has them longer
// probably runs the command that has begun the job, or is a supervisor: it holds the connections.
const jobWait = 2 * time.Second

// protectJob holds connections during a job of systemd, which waits until this process
// reports that they are held.
func (a *app) protectJob(ctx context.Context, service string, o protect.Options) error {
	return withSystemd(ctx, func(m *unit.Manager) (err error) {
		if o.Overlap, err = unit.Overlaps(ctx, m, service); err != nil {
			return err
		}
		o.Job = &unit.Job{Manager: m, Service: service, Held: func() error {
			sdnotify.Notify(o.Log, sdnotify.Ready)
			return nil
		}}
		o.Wait = jobWait
		r, err := a.protectHold(ctx, o)
		if errors.Is(err, protect.ErrTaken) {
			a.ui.note("another protect holds connections to %s already", service)
			sdnotify.Notify(o.Log, sdnotify.Ready)
			return nil
		}
		if o.Overlap && r.Released.Reason == protect.OldStayed {
			if e := m.Keeps(ctx, service); e != nil {
				a.ui.note("%v", e) // the next reload is held again
			}
		}
		return err
	})
}
