package reload

import (
	"context"
	"errors"
	"os/exec"
	"slices"
	"strconv"
	"time"
)

// Mode is what is done for the clients meanwhile.
type Mode string

// The modes: nothing, what others do, and the ways of `holdfast protect`.
const (
	Nothing  Mode = "nothing"
	SYNDrop  Mode = "syn-drop" // a firewall's rule drops SYNs
	Handover Mode = "handover" // HAProxy's own -x
	Migrate  Mode = "migrate"
	Plug     Mode = "plug"
	NFQueue  Mode = "nfqueue"
	Park     Mode = "park"
)

// AllModes are all, in the order of the table.
func AllModes() []Mode { return []Mode{Nothing, SYNDrop, Handover, Migrate, Plug, NFQueue, Park} }

// does reports whether a mode is for a change: what needs two overlapping servers
// has nothing to say about a hard restart.
func (m Mode) does(c Change) bool {
	return c == Reload || !slices.Contains([]Mode{SYNDrop, Handover, Migrate}, m)
}

// ours reports whether a mode is one that the score is about.
func (m Mode) ours() bool { return m == NFQueue || m == Park }

// way is how a mode changes HAProxy.
type way interface {
	// begin prepares. A text instead of an error says why this host cannot do
	// it.
	begin(ctx context.Context) (skipped string, err error)
	// change changes HAProxy once and says how long the command took that
	// does it.
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
	}
	return &protected{x: x, backend: string(r.Mode), run: r}
}

// plain runs the command and nothing else.
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

// dropping drops SYNs around the command, as the write-up does: who comes
// meanwhile comes again a second later. It waits between the rule and the reload
// for handshakes under way, and reloads once a second: more often, and clients run
// into the next drop with their second SYN, and into another with their third.
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
