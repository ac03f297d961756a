package reload

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"strconv"
	"time"
)

// protected changes HAProxy with `holdfast protect`, one process for each change, as
// an operator does.
type protected struct {
	x       *experiment
	backend string
	run     *Run
}

// argv is a command line of protect for the port.
func (p *protected) argv(c Change, more ...string) []string {
	argv := append(append([]string(nil), p.x.o.Protect...),
		"--json", "--backend", p.backend, "--port", strconv.Itoa(int(frontAddress.Port())))
	if c == Reload {
		argv = append(argv, "--overlap")
	}
	if p.x.o.Drain > 0 {
		argv = append(argv, "--drain", p.x.o.Drain.String())
	}
	return append(argv, more...)
}

// begin asks protect whether the backend works here.
func (p *protected) begin(ctx context.Context) (string, error) {
	if len(p.x.o.Protect) == 0 {
		return "", errors.New("no command line of protect")
	}
	out, err := p.x.stack.output(ctx, p.argv(Reload, "--check")...)
	if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
		return "", err
	}
	var lines []struct {
		Backend, Why string
		Works        bool
	}
	if e := json.Unmarshal(out, &lines); e != nil {
		return "", errors.Join(err, fmt.Errorf("what protect --check says: %w", e))
	}
	for _, l := range lines {
		if l.Backend != p.backend {
			continue
		}
		if l.Works {
			return "", nil
		}
		return l.Why, nil
	}
	return "protect knows no backend of this name", nil
}

// installed is protected with the port installed.
type installed struct{ *protected }

// begin also installs the port.
func (i installed) begin(ctx context.Context) (string, error) {
	why, err := i.protected.begin(ctx)
	if err == nil && why == "" {
		err = i.install(ctx)
	}
	return why, err
}

// change returns how long the command took, by protect's own account.
func (p *protected) change(ctx context.Context, c Change) (time.Duration, error) {
	out, err := p.x.stack.output(ctx, p.argv(c, "--", p.x.stack.file(c.script()))...)
	if err != nil {
		return 0, err
	}
	var report struct {
		Steps []struct {
			Name string
			Took time.Duration `json:"took_ns"`
		}
		Drained struct{ Left int }
	}
	if err := json.Unmarshal(out, &report); err != nil {
		return 0, fmt.Errorf("decode protect's report: %w", err)
	}
	p.run.Unfinished += report.Drained.Left
	var took time.Duration
	started := false
	for _, s := range report.Steps {
		if started {
			took += s.Took
		}
		switch s.Name {
		case "start":
			started = true
		case "command": // the hold may have ended before it
			return took, nil
		}
	}
	return 0, fmt.Errorf("protect reports no time of the command: %s", out)
}
