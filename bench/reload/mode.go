package reload

import (
	"context"
	"errors"
	"os/exec"
	"slices"
	"strconv"
	"time"
)

// Mode is the protection of clients during the changes.
type Mode string

// The modes: no protection, the usual workarounds, and the backends of `holdfast protect`.
const (
	Nothing  Mode = "nothing"
	SYNDrop  Mode = "syn-drop"      // a firewall's rule drops SYNs
	Handover Mode = "handover"      // HAProxy's own -x
	Master   Mode = "master-worker" // HAProxy's own -W
	Migrate  Mode = "migrate"
	Plug     Mode = "plug"
	Toggled  Mode = "plug-installed" // the plug stays on lo, and is closed and opened
	NFQueue  Mode = "nfqueue"
	Park     Mode = "park"
)

// AllModes lists the modes in the order of the table.
func AllModes() []Mode {
	return []Mode{Nothing, SYNDrop, Handover, Master, Migrate, Plug, Toggled, NFQueue, Park}
}

// does reports whether a mode applies to a change. A mode that needs two overlapping
// servers does not apply to a hard restart.
func (m Mode) does(c Change) bool {
	return c == Reload || !slices.Contains([]Mode{SYNDrop, Handover, Master, Migrate}, m)
}

// ours reports whether the score includes a mode.
func (m Mode) ours() bool { return m == NFQueue || m == Park }

// way is how a mode changes HAProxy.
type way interface {
	// begin prepares the mode. A non-empty text is the reason why this host cannot
	// run it.
	begin(ctx context.Context) (skipped string, err error)
	// change changes HAProxy once and returns the duration of the command.
	change(ctx context.Context, c Change) (time.Duration, error)
}

func (r *Run) way(x *experiment) way {
	switch r.Mode {
	case Nothing:
		return plain{x.stack, nil}
	case SYNDrop:
		return dropping{plain{x.stack, nil}}
	case Handover:
		return plain{x.stack, []string{"-x", x.stack.file("haproxy.sock")}}
	case Master:
		return master{x.stack}
	case Toggled:
		return installed{&protected{x: x, backend: string(Plug), run: r}}
	}
	return &protected{x: x, backend: string(r.Mode), run: r}
}

// plain runs the command without protection.
type plain struct {
	stack   *stack
	options []string // of HAProxy
}

func (plain) begin(context.Context) (string, error) { return "", nil }

func (p plain) change(ctx context.Context, c Change) (time.Duration, error) {
	begun := time.Now()
	err := p.stack.command(ctx, append([]string{p.stack.file(c.script())}, p.options...)...)
	return time.Since(begun), err
}

// dropping drops SYNs around the command, as the write-up does. A client that connects
// meanwhile sends its SYN again after 1 s. dropping waits between the rule and the
// reload for handshakes in progress, and reloads once a second. At a higher rate a
// client's second and third SYN would hit further drops.
type dropping struct{ plain }

const (
	dropBefore = 200 * time.Millisecond
	dropPause  = time.Second
)

func (dropping) pause() time.Duration { return dropPause }

func (d dropping) rule(ctx context.Context, action string) error {
	path, err := program("iptables")
	if err != nil {
		return err
	}
	return d.stack.command(ctx, path, "-w", action, "INPUT", "-p", "tcp",
		"--dport", strconv.Itoa(int(frontAddress.Port())), "--syn", "-j", "DROP")
}

func (d dropping) begin(ctx context.Context) (string, error) {
	for _, action := range []string{"-I", "-D"} {
		if err := d.rule(ctx, action); err != nil {
			if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
				return "iptables does not work here: " + err.Error(), nil
			}
			return "", err
		}
	}
	return "", nil
}

func (d dropping) change(ctx context.Context, c Change) (time.Duration, error) {
	if err := d.rule(ctx, "-I"); err != nil {
		return 0, err
	}
	time.Sleep(dropBefore)
	took, err := d.plain.change(ctx, c)
	return took, errors.Join(err, d.rule(ctx, "-D"))
}
