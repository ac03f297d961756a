package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"holdfast/internal/hosts/protect"
	"holdfast/internal/hosts/protect/install"
)

// protectRecord is the file that restores the installed ports after a boot.
const protectRecord = "/var/lib/holdfast/protect.json"

// installFlags are the flags of the commands for installed ports.
type installFlags struct {
	ports   []int
	listen  []string
	backend string
	record  string
	restore bool
	unit    unitFlags
}

func (i *installFlags) add(f *pflag.FlagSet) {
	f.StringVar(&i.record, "record", protectRecord, "file that restores the ports after a boot; '' for none")
}

// addPorts adds the flags that name ports; to is the action in their help.
func (i *installFlags) addPorts(f *pflag.FlagSet, to string) {
	f.IntSliceVar(&i.ports, "port", nil, "TCP port to "+to+", on all addresses; may be repeated")
	f.StringSliceVar(&i.listen, "listen", nil, "address and port to "+to+", such as 10.0.0.1:80 or [::1]:80; may be repeated")
	i.add(f)
}

func (a *app) installOptions(i installFlags) install.Options {
	return install.Options{
		Keeper: a.deps.Keeper, LockDir: protect.LockDir, Record: i.record,
		Log: slog.New(slog.NewTextHandler(a.ui.err, nil)),
	}
}

func (a *app) protectInstallCmd() *cobra.Command {
	var i installFlags
	cmd := &cobra.Command{
		Use:   "install",
		Short: "Prepare ports that are protected often, or protect a systemd unit",
		Long: `Prepare ports that are protected often, or protect a systemd unit.

With --unit, every "systemctl restart" and "systemctl reload" of the service is protected
from now on, whatever begins it: an operator, a package's upgrade, a tool. Files below
/etc/systemd/system do that; --dry-run prints them. The service has to run and listen.
The ports are those on which it listens at each restart, or those given. A stop is not
held, and neither is a crash ("holdfast protect run" holds both).

Without --unit, a process stands by for them, so that
"holdfast protect" of such a port begins to hold in a fraction of the time. The
process holds no connections itself and does not delay packets. Without it protect
works as before. With --backend plug it keeps a queueing discipline on lo, so that a hold
drops no packet there; each packet on lo then takes that discipline's lock.

The command records the ports, and holdfast-protect.service restores them after a
boot (--restore). Installing a port again changes its backend. A server does not have
to listen on it yet. It needs root.`,
		Example: "  holdfast protect install --port 16000\n" +
			"  holdfast protect install --listen 10.0.0.1:443 --backend nfqueue\n" +
			"  holdfast protect install --restore\n" +
			"  holdfast protect install --unit haproxy",
		RunE: a.within(stopLimit, func(ctx context.Context, cmd *cobra.Command, _ []string) error {
			as, err := addresses(i.ports, i.listen)
			if err == nil {
				err = i.validate(as)
			}
			if err == nil {
				err = i.unit.validate(cmd)
			}
			if err != nil {
				return usage(cmd, err)
			}
			if i.unit.name != "" {
				return a.unitInstall(ctx, i.unit, as, protect.Name(i.backend))
			}
			if i.restore {
				s, err := install.Restore(ctx, a.installOptions(i))
				return a.installed(s, err)
			}
			var ports []protect.Installed
			for _, address := range as {
				ports = append(ports, protect.Installed{Address: address, Backend: protect.Name(i.backend)})
			}
			s, err := install.Add(ctx, a.installOptions(i), ports)
			return a.installed(s, err)
		}),
	}
	f := cmd.Flags()
	i.addPorts(f, "prepare")
	f.StringVar(&i.backend, "backend", string(protect.Auto), "default backend: auto, park, nfqueue, migrate or plug")
	f.BoolVar(&i.restore, "restore", false, "restore the ports of the record, as after a boot")
	i.unit.add(f)
	completeWords(cmd, "backend", backendNames()...)
	return cmd
}

// validate refuses invalid flags.
func (i *installFlags) validate(as []protect.Address) error {
	switch {
	case i.restore && len(as) > 0:
		return fmt.Errorf("--restore restores the ports of the record, and takes no port")
	case i.restore && i.record == "":
		return fmt.Errorf("--restore needs a --record")
	case i.restore && i.unit.name != "":
		return fmt.Errorf("--restore restores ports, and takes no --unit")
	case !i.restore && len(as) == 0 && i.unit.name == "":
		return fmt.Errorf("there is no port: use --port, --listen or --unit")
	}
	return knownBackend(i.backend)
}

func (a *app) protectStatusCmd() *cobra.Command {
	var i installFlags
	cmd := &cobra.Command{
		Use:     "status",
		Short:   "Show the installed ports and their holds, and the protected units",
		Long:    "Show the ports that \"holdfast protect install\" has prepared: their backend, the number of\nholds since the keeper started, the longest wait, and the current hold. Also show the\nprotected units.",
		Example: "  holdfast protect status\n  holdfast protect status --json",
		RunE: a.within(askLimit, func(ctx context.Context, _ *cobra.Command, _ []string) error {
			s, err := install.Status(ctx, a.installOptions(i))
			if err != nil {
				return err
			}
			units, err := unitStates(ctx)
			if err != nil {
				return err
			}
			return a.protectStatus(s, units)
		}),
	}
	i.add(cmd.Flags())
	return cmd
}

func (a *app) protectUninstallCmd() *cobra.Command {
	var i installFlags
	cmd := &cobra.Command{
		Use:   "uninstall",
		Short: "Undo install, for everything or for some ports or a unit",
		Long: `Undo "holdfast protect install", for the given ports, for a unit, or for all ports and
units. The standing keeper ends with the last port. A current hold of a port ends first; a
current hold of a unit is released.`,
		Example: "  holdfast protect uninstall\n  holdfast protect uninstall --port 16000\n  holdfast protect uninstall --unit haproxy",
		RunE: a.within(stopLimit, func(ctx context.Context, cmd *cobra.Command, _ []string) error {
			as, err := addresses(i.ports, i.listen)
			if err != nil {
				return usage(cmd, err)
			}
			if i.unit.name != "" && len(as) > 0 {
				return usage(cmd, errors.New("--unit takes no port"))
			}
			if i.unit.name != "" || len(as) == 0 {
				if err := a.unitRemove(ctx, i.unit.name); err != nil || i.unit.name != "" {
					return err
				}
			}
			s, err := install.Remove(ctx, a.installOptions(i), as)
			return a.installed(s, err)
		}),
	}
	i.addPorts(cmd.Flags(), "uninstall")
	cmd.Flags().StringVar(&i.unit.name, "unit", "", "systemd unit that is not to be protected any more")
	return cmd
}

// installed prints the installed ports.
func (a *app) installed(s install.State, err error) error {
	if err != nil {
		return err
	}
	if len(s.Ports) == 0 {
		a.ui.note("no port is installed")
		if !a.ui.json {
			return nil
		}
	}
	if err := a.ui.result(s, func(w io.Writer) { writeInstalled(w, s) }); err != nil {
		return err
	}
	a.installedNotes(s)
	return nil
}

func writeInstalled(w io.Writer, s install.State) {
	fmt.Fprintln(w, "PORT\tBACKEND\tLISTENS\tHOLDS\tHELD\tLONGEST WAIT\tNOW")
	for _, p := range s.Ports {
		backend := string(p.Backend)
		switch {
		case p.Works != "" && p.Works != p.Backend:
			backend += " (" + string(p.Works) + ")"
		case p.Last != "" && p.Last != p.Backend:
			backend += " (" + string(p.Last) + ")"
		}
		now := "-"
		switch c := p.Now; {
		case !p.Standing:
			now = "no standing keeper"
		case c != nil:
			now = fmt.Sprintf("process %d since %s, %d waiting: %s", c.Pid, c.Since.Format(time.TimeOnly), c.Stats.Waiting, dash(clean(c.Command)))
		}
		longest := "-"
		if p.Holds > 0 {
			longest = inMs(p.Longest)
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%d\t%d\t%s\t%s\n", p.Address, backend, yesNo(p.Listening), p.Holds, p.Connections, longest, now)
	}
}

// installedNotes prints advice about the installed ports.
func (a *app) installedNotes(s install.State) {
	missing, forgotten := false, false
	for _, p := range s.Ports {
		missing, forgotten = missing || !p.Standing, forgotten || !p.Recorded
	}
	if s.Keeper != nil {
		a.ui.note("standing keeper: process %d since %s", s.Keeper.Pid, s.Keeper.Since.Format(time.RFC3339))
		if s.Keeper.Outdated {
			a.ui.note("it runs another version of this program: `holdfast protect install --restore` replaces it")
		}
	}
	switch {
	case missing:
		a.ui.note("`holdfast protect install --restore` starts a standing keeper again, and so does holdfast-protect.service at a boot")
	case forgotten:
		a.ui.note("some ports are not in the record: they stay installed until the next boot only")
	case len(s.Ports) > 0:
		a.ui.note("holdfast-protect.service restores them after a boot, if it is enabled")
	}
}
