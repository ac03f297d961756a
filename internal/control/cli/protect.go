package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"holdfast"
	"holdfast/internal/hosts/protect"
	"holdfast/internal/hosts/protect/history"
	"holdfast/internal/hosts/protect/keep"
	"holdfast/internal/hosts/protect/ready"
	"holdfast/internal/platform/linux/netns"
)

// protectFlags are the flags of `holdfast protect`.
type protectFlags struct {
	ports     []int
	listen    []string
	pid       int
	unit      string
	container string
	timeout   time.Duration
	drain     time.Duration
	overlap   bool
	backend   string
	ready     string
	keep      keepFlags
	udp       udpFlags
	check     bool
	job       bool
}

func (a *app) protectCmd() *cobra.Command {
	var p protectFlags
	cmd := &cobra.Command{
		Use:   "protect [flags] -- COMMAND [ARG...]",
		Short: "Hold new connections to a port while a command restarts its server",
		Long: `Hold new connections to a port while a command restarts its server.

A connect during the restart waits in the kernel and reaches the new server when
that listens. The server needs no change. The old server keeps its connections: the
command starts when none of them has an unanswered request, or after --drain.

Without --port and --listen, the ports are those on which --pid or --unit listens.
The hold ends when the new server listens and the old one does not, when the command
has ended and the server has kept its sockets, when a signal has ended the command,
or after --timeout. It also ends if this process is killed. The exit code is that of
the command, or 10 if that was 0 and the server did not become ready in time. It needs
root.

With --ready the server also has to answer that it is ready: postgres, mysql or redis
ask in that protocol, an http:// or https:// URL has to be answered with a status from
200 to 399, and exec:PROGRAM runs a program, whose exit code 0 means ready. The words {host} and
{port} in its arguments are an address at which it reaches the new server; there is no
shell. With auto, PostgreSQL, MySQL, MariaDB and Redis are recognised and asked. tcp asks
nothing.

With --keep idle, connections on which the old server spoke HTTP/1 and which are between
two requests survive too, also if the command kills the server. A process takes them, and
passes their next requests to the new server, for --keep-for. That server sees an address
of this host as the client's, unless the client is on this host. --keep local keeps only
the connections of such clients. Connections with TLS end as without --keep.

With --udp, datagrams to the ports wait too, and reach the new server with their client's
address. If it runs beside the old one (--overlap), known flows stay with the old one
until that ends, or for --udp-for; of QUIC, these are connections.`,
		Example: "  holdfast protect --port 16000 -- systemctl restart haproxy\n" +
			"  holdfast protect --unit nginx -- systemctl restart nginx\n" +
			"  holdfast protect --port 8080 --ready http://localhost:8080/health -- systemctl restart app\n" +
			"  holdfast protect --port 5432 --ready \"exec:pg_isready -h {host} -p {port}\" -- pg_ctlcluster 15 main restart\n" +
			"  holdfast protect --port 8080 --keep idle -- systemctl restart app\n" +
			"  holdfast protect --port 53 --udp -- systemctl restart unbound\n" +
			"  holdfast protect --port 80 --port 443 --check",
		RunE: func(cmd *cobra.Command, words []string) error {
			o, err := p.options(cmd, words)
			if err != nil {
				return err
			}
			if p.container != "" {
				forget, err := a.findContainer(cmd.Context(), p.container, &o)
				if err != nil {
					return err
				}
				defer forget()
			} else if err := p.find(&o); err != nil {
				return err
			}
			o.Keeper, o.LockDir = a.deps.Keeper, protect.LockDir
			o.Log = slog.New(slog.NewTextHandler(a.ui.err, nil))
			if p.check {
				return a.protectCheck(cmd.Context(), o)
			}
			if p.job {
				return a.protectJob(cmd.Context(), p.unit, o)
			}
			return a.protectRun(cmd.Context(), o)
		},
	}
	cmd.AddCommand(a.protectGuardCmd())
	group(cmd, a.protectRunCmd(), a.protectInstallCmd(), a.protectStatusCmd(), a.protectUninstallCmd(), a.protectHistoryCmd())
	cmd.Args = args(0, 1<<16, "a command")
	f := cmd.Flags()
	f.SetInterspersed(false)
	f.IntSliceVar(&p.ports, "port", nil, "TCP port to hold, on all addresses; may be repeated")
	f.StringSliceVar(&p.listen, "listen", nil, "address and port to hold, such as 10.0.0.1:80 or [::1]:80; may be repeated")
	f.IntVar(&p.pid, "pid", 0, "process with the network namespace of the ports")
	f.StringVar(&p.unit, "unit", "", "systemd unit of the server")
	f.StringVar(&p.container, "container", "", "Docker container with the published ports to hold; the command may replace it by one of the same name")
	f.DurationVar(&p.timeout, "timeout", 30*time.Second, "longest time to hold connections, and to wait for another protect of the same port")
	f.DurationVar(&p.drain, "drain", time.Second, "longest time that the command waits for running requests, with --overlap for connections not yet accepted; 0 does not wait")
	f.BoolVar(&p.overlap, "overlap", false, "the new server listens before the old one stops, and the old one finishes its requests itself (as haproxy -sf)")
	f.StringVar(&p.backend, "backend", string(protect.Auto), "backend: auto, park, nfqueue, migrate or plug")
	f.StringVar(&p.ready, "ready", string(ready.Auto), "when the new server is ready: auto, tcp, postgres, mysql, redis, an http:// or https:// URL, or exec:PROGRAM [ARG...]")
	p.keep.add(f, "")
	p.udp.add(f)
	f.BoolVar(&p.check, "check", false, "only show which backends work here, and why others do not")
	f.BoolVar(&p.job, "job", false, "in place of a command: the unit's current job of systemd")
	_ = f.MarkHidden("job") // for units that install writes; it exists
	completeWords(cmd, "backend", backendNames()...)
	completeWords(cmd, "ready", texts(ready.Words())...)
	completeWords(cmd, "keep", texts(keep.Words())...)
	completeWords(cmd, "udp", texts(protect.AllFlows())...)
	return cmd
}

func backendNames() []string { return texts(protect.Names()) }

// options checks the command line and resolves its names.
func (p *protectFlags) options(cmd *cobra.Command, words []string) (protect.Options, error) {
	o := protect.Options{
		Drain: p.drain, Wait: p.timeout, Command: words,
		Stdin: cmd.InOrStdin(), Stdout: cmd.OutOrStdout(), Stderr: cmd.ErrOrStderr(),
	}
	o.Backend, o.Overlap, o.Limit = protect.Name(p.backend), p.overlap, p.timeout
	o.UDP, o.UDPFor = protect.Flows(p.udp.flows), p.udp.limit
	o.Keep, o.KeepFor = keep.Clients(p.keep.clients), p.keep.life
	if err := p.validate(words); err != nil {
		return o, usage(cmd, err)
	}
	var err error
	if o.Ready, err = ready.Parse(p.ready); err != nil {
		return o, usage(cmd, fmt.Errorf("--ready: %w", err))
	}
	if o.Addresses, err = addresses(p.ports, p.listen); err != nil {
		return o, usage(cmd, err)
	}
	return o, nil
}

// addresses returns the addresses of --port and --listen.
func addresses(ports []int, listen []string) ([]protect.Address, error) {
	var as []protect.Address
	for _, port := range ports {
		if port < 1 || port > 65535 {
			return nil, fmt.Errorf("--port is %d, it must be from 1 to 65535", port)
		}
		as = append(as, protect.Address{Port: uint16(port)})
	}
	for _, l := range listen {
		addr, err := protect.ParseAddress(l)
		if err != nil {
			return nil, fmt.Errorf("--listen: %w", err)
		}
		as = append(as, addr)
	}
	return as, nil
}

// knownBackend refuses an unknown --backend.
func knownBackend(name string) error {
	if !slices.Contains(backendNames(), name) {
		return fmt.Errorf("--backend is %q, it must be auto, park, nfqueue, migrate or plug", name)
	}
	return nil
}

// validate refuses invalid flags.
func (p *protectFlags) validate(words []string) error {
	switch {
	case p.job && (len(words) > 0 || p.check || p.unit == ""):
		return fmt.Errorf("--job needs --unit, and neither a command nor --check")
	case len(words) == 0 && !p.check && !p.job:
		return fmt.Errorf("there is no command after --")
	case len(words) > 0 && p.check:
		return fmt.Errorf("--check runs no command, but got %q", words[0])
	case len(p.ports)+len(p.listen) == 0 && p.pid == 0 && p.unit == "" && p.container == "":
		return fmt.Errorf("there is no port: use --port, --listen, --pid, --unit or --container")
	case p.pid != 0 && p.unit != "" || p.container != "" && (p.pid != 0 || p.unit != ""):
		return fmt.Errorf("--pid, --unit and --container exclude each other")
	case p.pid < 0:
		return fmt.Errorf("--pid is %d, it must be over 0", p.pid)
	case p.timeout <= 0 || p.drain < 0:
		return fmt.Errorf("--timeout is %v and --drain is %v, they must be over 0 and at least 0", p.timeout, p.drain)
	case !p.check && p.drain >= p.timeout:
		return fmt.Errorf("--drain is %v, it must be less than --timeout, %v: otherwise the hold ends before the command begins", p.drain, p.timeout)
	}
	if p.container != "" && p.keep.clients != string(keep.None) {
		return fmt.Errorf("--keep does not work with --container")
	}
	if err := p.keep.validate(p.drain); err != nil {
		return err
	}
	if err := p.udp.validate(p.container != "", p.check); err != nil {
		return err
	}
	return knownBackend(p.backend)
}

// find finds the server's processes, and the ports if none is given.
func (p *protectFlags) find(o *protect.Options) error {
	var err error
	switch {
	case p.pid != 0:
		o.PIDs, err = protect.Family(p.pid)
	case p.unit != "":
		o.PIDs, err = protect.UnitPIDs(p.unit)
	default:
		return nil
	}
	if err != nil {
		return err
	}
	o.Netns = netns.OfProcess(o.PIDs[0])
	if len(o.Addresses) > 0 {
		return nil
	}
	o.Addresses, err = protect.ListenedBy(o.Netns, o.PIDs)
	return err
}

// findContainer sets o from a container's published ports: the given ones, or all. The
// caller calls forget at the end.
func (a *app) findContainer(ctx context.Context, name string, o *protect.Options) (forget func(), err error) {
	e, err := a.deps.OpenEngine(ctx)
	if err != nil {
		return nil, err
	}
	c, err := e.Inspect(ctx, name)
	if err == nil && len(c.Published) == 0 {
		err = holdfast.WithHint(fmt.Errorf("container %s publishes no TCP port, or is not running", name),
			"`docker ps` shows published ports; --pid with its process holds a port inside the container")
	}
	if err != nil {
		return nil, errors.Join(err, e.Close())
	}
	given := o.Addresses
	o.Addresses, o.Published = nil, &protect.Published{Init: func(ctx context.Context) (int, error) {
		c, err := e.Inspect(ctx, name)
		if errors.Is(err, holdfast.ErrNotFound) {
			return 0, nil
		}
		return c.Pid, err
	}}
	for _, p := range c.Published {
		addr := protect.Address{Addr: p.Host.Addr(), Port: p.Host.Port()}
		if addr.Addr.IsUnspecified() {
			addr.Addr = netip.Addr{}
		}
		held := within(addr, given)
		if len(held) == 0 {
			continue
		}
		for _, h := range held {
			if !slices.Contains(o.Addresses, h) {
				o.Addresses = append(o.Addresses, h)
			}
		}
		if !slices.Contains(o.Published.Inside, p.Inside) {
			o.Published.Inside = append(o.Published.Inside, p.Inside)
		}
	}
	if len(o.Addresses) == 0 {
		return nil, errors.Join(fmt.Errorf("container %s does not publish the ports of --port and --listen", name), e.Close())
	}
	o.Forwarded = true
	return func() { _ = e.Close() }, nil
}

// within returns the parts of a published address that are given, or all of it if none is
// given. An address without an IP address is the port on all of them.
func within(published protect.Address, given []protect.Address) (parts []protect.Address) {
	if len(given) == 0 {
		return []protect.Address{published}
	}
	for _, g := range given {
		switch {
		case g.Port != published.Port:
		case !g.Addr.IsValid() || g.Addr == published.Addr:
			parts = append(parts, published)
		case !published.Addr.IsValid():
			parts = append(parts, g)
		}
	}
	return parts
}

// protectRun is `holdfast protect -- COMMAND`.
func (a *app) protectRun(ctx context.Context, o protect.Options) error {
	_, err := a.protectHold(ctx, o)
	return err
}

// protectHold runs a protect, records and prints its report, and returns the error for the
// exit code.
func (a *app) protectHold(ctx context.Context, o protect.Options) (protect.Report, error) {
	if a.ui.json { // stdout is for the result
		o.Stdout = a.ui.err
	}
	r, err := protect.Run(ctx, o)
	if r.Backend != "" {
		if e := history.Add(o.LockDir, history.HoldOf(o, r)); e != nil {
			a.ui.note("%v", e) // the restart was successful
		}
		if e := a.protectReport(r); e != nil {
			return r, e
		}
	}
	switch {
	case err != nil && r.ExitCode != 0:
		return r, &exitError{err: fmt.Errorf("the command failed (exit code %d), and %w", r.ExitCode, err), code: r.ExitCode}
	case errors.Is(err, protect.ErrNotReady):
		return r, &exitError{err: err, code: exitNotReady}
	case err != nil:
		return r, err
	case r.ExitCode != 0:
		return r, status(r.ExitCode)
	}
	return r, nil
}

// protectReport prints the report: with --json as the result, otherwise beside the
// command's output.
func (a *app) protectReport(r protect.Report) error {
	u := a.ui
	if !u.json {
		u = newUI(u.in, u.err, u.err)
	}
	return u.result(r, func(w io.Writer) {
		backend := string(r.Backend)
		if r.Installed {
			backend += " (installed)"
		}
		head, row := "HELD\tLONGEST WAIT\tBACKEND", fmt.Sprintf("%d\t%s\t%s", r.Released.Stats.Held, inMs(r.Released.Stats.Longest), backend)
		for _, s := range r.Steps {
			head += "\t" + strings.ToUpper(s.Name)
			row += "\t" + inMs(s.Took)
		}
		fmt.Fprintf(w, "%s\n%s\n", head, row)
		if r.Drained.Left > 0 {
			fmt.Fprintf(w, "%s unanswered when the command began\n", count(r.Drained.Left, "request"))
		}
		if a := r.Released.Ready; a != nil && a.Tries > 0 {
			fmt.Fprintln(w, readyLine(*a))
		}
		if r.Kept != nil {
			writeKept(w, *r.Kept)
		}
		if d := r.Released.Datagrams; d != nil {
			writeDatagrams(w, *d)
		}
		if why := r.Released.Reason; why != protect.NewListens && why != "" {
			fmt.Fprintf(w, "released because %s\n", why)
		}
	})
}

// readyLine describes how the new server was asked.
func readyLine(a protect.Readiness) string {
	var how []string
	recognised := false
	for _, q := range a.Asked {
		text := clean(q.String())
		if q.Recognised {
			text += fmt.Sprintf(" (recognised on port %d)", q.Port)
		}
		how = append(how, text)
		recognised = recognised || q.Recognised
	}
	asked := "asked by " + strings.Join(how, ", ")
	switch {
	case a.Unasked != "":
		asked += ": " + clean(a.Unasked)
	case a.Ready:
		asked += fmt.Sprintf(": ready %s after it listened, in the answer to question %d", inMs(a.Took), a.Tries)
	default:
		asked += fmt.Sprintf(": not ready %s after it listened, in %s", inMs(a.Took), count(a.Tries, "question"))
	}
	if recognised {
		asked += "; --ready tcp asks nothing"
	}
	return asked
}

// inMs formats a time in milliseconds.
func inMs(d time.Duration) string { return fmt.Sprintf("%.1fms", float64(d.Microseconds())/1000) }

// checkedBackend is a line of `holdfast protect --check`.
type checkedBackend struct {
	Backend protect.Name `json:"backend"`
	Works   bool         `json:"works"`
	Used    bool         `json:"used"`
	// Installed is whether a standing keeper has the ports.
	Installed bool   `json:"installed,omitempty"`
	Why       string `json:"why,omitempty"`
}

// protectCheck is `holdfast protect --check`.
func (a *app) protectCheck(ctx context.Context, o protect.Options) error {
	rs, err := protect.Check(ctx, o)
	if err != nil {
		return err
	}
	var lines []checkedBackend
	wanted, installed := o.Prepared(ctx)
	used := false
	for _, r := range rs {
		l := checkedBackend{Backend: r.Backend, Works: r.Why == "", Why: r.Why}
		l.Used = l.Works && !used && (wanted == protect.Auto || wanted == r.Backend)
		l.Installed = l.Used && installed
		used = used || l.Used
		lines = append(lines, l)
	}
	err = a.ui.result(lines, func(w io.Writer) {
		fmt.Fprintln(w, "BACKEND\tWORKS\tUSED\tWHY NOT")
		for _, l := range lines {
			use := yesNo(l.Used)
			if l.Installed {
				use += ", installed"
			}
			fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", l.Backend, yesNo(l.Works), use, dash(l.Why))
		}
	})
	if err == nil && !used {
		err = protect.ErrNoBackend
	}
	return err
}
