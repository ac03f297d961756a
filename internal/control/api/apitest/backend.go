// Package apitest has a Backend that keeps sessions in memory and starts no
// container. Tests use it to check the traffic between the API and its callers,
// and to cause faults that a real agent does not have. Tests only.
package apitest

import (
	"bufio"
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"time"

	"holdfast"
	"holdfast/internal/control/api"
	"holdfast/internal/hosts/doctor/baseline"
	"holdfast/internal/hosts/spinup"
	"holdfast/internal/hosts/spinup/prefetch"
	"holdfast/internal/hosts/spinup/underway"
)

// Backend is an agent of one node. The zero value is ready to use. Some keys
// have a meaning: "broken" fails to boot, "stuck" cannot be killed, "torn" has
// lost its memory when it is resumed.
type Backend struct {
	// Node is the node's id; "" is "n1".
	Node holdfast.NodeID
	// PID is the process id in the version; 0 is none.
	PID int
	// Gate, if not nil, makes every start wait until it is closed.
	Gate chan struct{}
	// Files is a directory of this host with the files of all sessions; "" is none.
	Files string
	// Stopped is called by StopAgent; may be nil.
	Stopped func(keep bool)

	mu         sync.Mutex
	fault      error
	sessions   []api.Session
	commands   []*detached
	history    []holdfast.Replacement // the newest first
	groups     []holdfast.Group
	stopWhy    string // of an experiment
	prefetch   []prefetch.Entry
	spinups    []spinup.Record // likewise
	underWay   []underway.Entry
	begun      int
	draining   bool
	drains     []api.DrainRequest
	epoch      holdfast.Epoch
	collection Collection
	protection api.Protection
	sick       bool
	allowed    bool // the stopped cure
	baselines  []baseline.Baseline
	upgrades   []api.Upgrade // that LastUpgrade returns, one after the other; the last one stays
}

// Began is when everything here began. It is fixed: tests compare outputs.
var Began = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// SetFault makes every method that returns an error return err.
func (b *Backend) SetFault(err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.fault = err
}

// Parts returns the parts of the agent, for api.New. A test replaces some of
// them.
func (b *Backend) Parts() api.Parts {
	return api.Parts{
		Version: api.Version{Version: "v1.0.0", Go: "go1.26.0", OS: "linux", Arch: "amd64", Node: b.node(), PID: b.PID},
		Agent:   b, Sessions: b, Forks: forks{b}, History: history{b}, Commands: b, Files: files{b}, Forwards: b, Jobs: jobs{b}, Nodes: b, Replacer: b, Groups: groups{b}, Prefetcher: prefetcher{b}, Spinups: spinups{b}, FleetSpinups: b.FleetSpinups, UnderWay: underWay{b},
		Experiments: experiments{b},
		GC:          collector{b}, Protection: b.Protection, Doctor: doctorOf{b}, Recordings: recordingsOf{b},
	}
}

func (b *Backend) failure() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.fault
}

func (b *Backend) node() holdfast.NodeID { return cmp.Or(b.Node, "n1") }

// Sessions implements api.SessionService. Without sessions it returns
// nil, as an agent may.
func (b *Backend) Sessions(context.Context) ([]api.Session, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.sessions), b.fault
}

// Session implements api.SessionService.
func (b *Backend) Session(_ context.Context, key holdfast.SessionKey) (api.Session, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	i, err := b.find(key)
	if err != nil {
		return api.Session{}, err
	}
	return b.sessions[i], nil
}

func (b *Backend) find(key holdfast.SessionKey) (int, error) {
	if b.fault != nil {
		return 0, b.fault
	}
	i := slices.IndexFunc(b.sessions, func(s api.Session) bool { return s.Key == key })
	if i < 0 {
		return 0, fmt.Errorf("session %s: %w", key, holdfast.ErrNotFound)
	}
	return i, nil
}

// StartSession implements api.SessionService.
func (b *Backend) StartSession(_ context.Context, key holdfast.SessionKey, template string) (api.Session, error) {
	if b.Gate != nil {
		<-b.Gate
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	memory := ""
	if i, err := b.find(key); err == nil {
		if b.sessions[i].State != holdfast.IsSuspended {
			return b.sessions[i], nil
		}
		b.sessions = slices.Delete(b.sessions, i, i+1)
		if memory = holdfast.Restored; key == "torn" {
			memory = "lost: the image is incomplete"
		}
	}
	switch {
	case b.fault != nil:
		return api.Session{}, b.fault
	case b.draining:
		return api.Session{}, fmt.Errorf("session %s: %w", key, holdfast.ErrDraining)
	case key == "broken":
		return api.Session{}, holdfast.WithHint(&holdfast.BootError{Key: key, Phase: "ready", Err: fmt.Errorf("exited with code 3"),
			Log: "listening on :8080\npanic: no \x1b[31mdatabase\n"}, "look at the template's command")
	}
	if template == "" {
		template = "shell"
	}
	b.epoch++
	s := api.Session{Owner: holdfast.Owner{Key: key, Node: b.node(), Epoch: b.epoch, Revision: holdfast.Revision(b.epoch) + 2,
		State: holdfast.Ready, Template: template, ContainerID: strings.Repeat(fmt.Sprintf("%08x", b.epoch), 8),
		Address: fmt.Sprintf("172.17.0.%d:8080", b.epoch+1), ClaimedAt: Began, ReadyAt: Began.Add(400 * time.Millisecond), Memory: memory},
		Connections: int(b.epoch) - 1}
	if s.Connections == 0 {
		s.IdleSince = Began.Add(time.Minute)
	}
	if key == "sleeper" {
		s.Sleep = &holdfast.Sleep{Since: Began.Add(2 * time.Minute), Memory: 14_200_000, Sleeps: 3, WokenAt: Began.Add(time.Minute), WokenBy: holdfast.WokenByWebSocket}
		s.WakeCron = Began.Add(24 * time.Hour)
	}
	b.sessions = append(b.sessions, s)
	slices.SortFunc(b.sessions, func(x, y api.Session) int { return strings.Compare(string(x.Key), string(y.Key)) })
	return s, nil
}

func leftover(s api.Session) holdfast.Leftover {
	return holdfast.Leftover{ContainerID: s.ContainerID, Name: "holdfast-" + string(s.Key), Key: s.Key, Pids: []int{41, 42}, Reason: "still in its cgroup"}
}

// MoveSession implements api.SessionService: with one node it is a stop. Elsewhere there are
// the nodes n2, which loses what the session "heavy" has in memory, n3, which
// drains, and n4, which cannot run it.
func (b *Backend) MoveSession(ctx context.Context, key holdfast.SessionKey, q api.MoveRequest) (holdfast.MoveReport, error) {
	if q.Elsewhere {
		return b.moveElsewhere(key, cmp.Or(q.To, "n2"))
	}
	r, err := b.StopSession(ctx, key)
	return holdfast.MoveReport{KillReport: r}, err
}

func (b *Backend) moveElsewhere(key holdfast.SessionKey, to holdfast.NodeID) (holdfast.MoveReport, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	i, err := b.find(key)
	if err != nil {
		return holdfast.MoveReport{}, err
	}
	s := &b.sessions[i]
	switch {
	case to == s.Node:
		return holdfast.MoveReport{}, &api.Error{Code: api.CodeBadRequest, Message: fmt.Sprintf("session %s is on node %s already", key, to), Advice: "name another node"}
	case to == "n3":
		return holdfast.MoveReport{}, fmt.Errorf("node n3: %w", holdfast.ErrDraining)
	case to != "n2":
		return holdfast.MoveReport{}, holdfast.WithHint(fmt.Errorf("node %s: %w", to, holdfast.ErrNotFound), "holdfast node ls")
	}
	r := holdfast.MoveReport{To: to, KillReport: holdfast.KillReport{Took: holdfast.Millis(80 * time.Millisecond), Dead: []string{s.ContainerID}}}
	r.Memory = holdfast.MemoryReport{Saved: 1, Bytes: 32 << 20, Took: holdfast.Millis(70 * time.Millisecond)}
	memory := holdfast.Restored
	if key == "heavy" {
		memory = ""
		r.Memory = holdfast.MemoryReport{Lost: []holdfast.LostMemory{{Key: key, Epoch: s.Epoch, Bytes: 4 << 30, Reason: "it does not fit"}}}
	}
	b.epoch++
	s.Node, s.Epoch, s.Memory = to, b.epoch, memory
	return r, nil
}

// SuspendSession implements api.SessionService. The key "plain" cannot be suspended.
func (b *Backend) SuspendSession(_ context.Context, key holdfast.SessionKey) (holdfast.SuspendReport, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	i, err := b.find(key)
	if err != nil {
		return holdfast.SuspendReport{}, err
	}
	s := &b.sessions[i]
	if key == "plain" {
		return holdfast.SuspendReport{}, holdfast.WithHint(fmt.Errorf("session plain: %w", holdfast.ErrNoMemory), "give its template handover: memory")
	}
	kept := holdfast.Suspended{Key: key, Epoch: s.Epoch, Node: s.Node, Template: s.Template, TakenAt: Began, Until: Began.Add(24 * time.Hour), Bytes: 1_500_000}
	*s = api.Session{Owner: holdfast.Owner{Key: key, Node: s.Node, Epoch: s.Epoch, State: holdfast.IsSuspended, Template: s.Template, ClaimedAt: Began}, Suspended: &kept}
	return holdfast.SuspendReport{Suspended: kept, Took: holdfast.Millis(310 * time.Millisecond)}, nil
}

// WakeSession implements api.SessionService.
func (b *Backend) WakeSession(_ context.Context, key holdfast.SessionKey, at time.Time) (api.Session, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	i, err := b.find(key)
	if err != nil {
		return api.Session{}, err
	}
	b.sessions[i].WakeAt = at
	return b.sessions[i], nil
}

// StopSession implements api.SessionService.
func (b *Backend) StopSession(_ context.Context, key holdfast.SessionKey) (holdfast.KillReport, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	i, err := b.find(key)
	if err != nil {
		return holdfast.KillReport{}, err
	}
	s := b.sessions[i]
	if key == "stuck" {
		return holdfast.KillReport{Took: holdfast.Millis(3 * time.Second), Left: []holdfast.Leftover{leftover(s)}}, nil
	}
	b.sessions = slices.Delete(b.sessions, i, i+1)
	return holdfast.KillReport{Took: holdfast.Millis(12 * time.Millisecond), Dead: []string{s.ContainerID}}, nil
}

// Usage implements api.SessionService.
func (b *Backend) Usage(key holdfast.SessionKey) (holdfast.Usage, error) {
	if _, err := b.Session(context.Background(), key); err != nil {
		return holdfast.Usage{}, err
	}
	return holdfast.Usage{MemoryLimit: 64 << 20, PageCache: 1 << 20, Samples: []holdfast.UsageSample{
		{At: Began, Memory: 8 << 20, CPU: holdfast.Millis(100 * time.Millisecond)}, {At: Began.Add(2 * time.Second), Memory: 9 << 20, CPU: holdfast.Millis(1100 * time.Millisecond)},
	}}, nil
}

// Logs implements api.SessionService: lines 1 to 3, and with Follow one more at a time
// until ctx is done. The key "cut" breaks after its lines.
func (b *Backend) Logs(ctx context.Context, key holdfast.SessionKey, o api.LogOptions, w io.Writer) error {
	if _, err := b.Session(ctx, key); err != nil {
		return err
	}
	lines := []string{"line 1", "line 2", "line 3"}
	if o.Tail >= 0 {
		lines = lines[len(lines)-min(o.Tail, len(lines)):]
	}
	stamp := ""
	if o.Timestamps {
		stamp = Began.Format(time.RFC3339Nano) + " "
	}
	for _, l := range lines {
		if _, err := fmt.Fprintf(w, "%s%s\n", stamp, l); err != nil {
			return err
		}
	}
	if key == "cut" {
		return fmt.Errorf("reading logs: %w", holdfast.ErrEngine)
	}
	for n := 4; o.Follow; n++ {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(10 * time.Millisecond):
			if _, err := fmt.Fprintf(w, "%sline %d\n", stamp, n); err != nil {
				return err
			}
		}
	}
	return nil
}

// Exec implements api.CommandService with these commands:
//
//	echo WORD…  prints the words
//	warn WORD…  prints the words to Stderr
//	cat         copies the input
//	exit N      exits with code N
//	wait        waits until ctx is done
//	tty         prints whether there is a terminal and an input
//	size        waits for a second terminal size, and prints both sizes
//	read        prints the input up to a carriage return
func (b *Backend) Exec(ctx context.Context, key holdfast.SessionKey, e api.Exec) (int, error) {
	if _, err := b.Session(ctx, key); err != nil {
		return 0, err
	}
	words := strings.Join(e.Command[1:], " ")
	var err error
	switch e.Command[0] {
	case "echo":
		_, err = fmt.Fprintln(e.Stdout, words)
	case "warn":
		_, err = fmt.Fprintln(e.Stderr, words)
	case "cat":
		if e.Stdin != nil {
			_, err = io.Copy(e.Stdout, e.Stdin)
		}
	case "exit":
		code := 0
		_, err = fmt.Sscan(words, &code)
		return code, err
	case "wait":
		if _, err = fmt.Fprintln(e.Stdout, "waiting"); err == nil {
			<-ctx.Done()
			err = ctx.Err()
		}
	case "tty":
		_, err = fmt.Fprintf(e.Stdout, "tty=%v stdin=%v\n", e.TTY, e.Stdin != nil)
	case "size":
		for range 2 {
			select {
			case s := <-e.Resize:
				_, err = fmt.Fprintf(e.Stdout, "%dx%d\n", s.Cols, s.Rows)
			case <-ctx.Done():
				return 0, ctx.Err()
			}
		}
	case "read":
		line, rerr := bufio.NewReader(e.Stdin).ReadString('\r')
		_, err = fmt.Fprintf(e.Stdout, "got %q %v\r\n", line, rerr)
	default:
		return 0, fmt.Errorf("%s: %w", e.Command[0], holdfast.ErrNotFound)
	}
	return 0, err
}

// Nodes implements api.NodeService.
func (b *Backend) Nodes(context.Context) ([]holdfast.Node, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return []holdfast.Node{{ID: b.node(), Address: "127.0.0.1:7070", Version: "v1.0.0", Draining: b.draining, Sessions: len(b.sessions),
		Max: 1000, Boots: 1, Slots: 8, Networks: 3, NetworksKept: 4, Warm: 2, WarmWanted: 3, CPULoad: 0.25, Pressure: 0.04, Memory: holdfast.Memory{Total: 8 << 30, Available: 6 << 30}, Since: Began, SeenAt: Began}}, b.fault
}

// Drains returns the requests of all drains.
func (b *Backend) Drains() []api.DrainRequest {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.drains)
}

// Drain implements api.NodeService.
func (b *Backend) Drain(_ context.Context, q api.DrainRequest, progress func(holdfast.Step)) (holdfast.DrainReport, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.fault != nil {
		return holdfast.DrainReport{}, b.fault
	}
	b.draining = true
	b.drains = append(b.drains, q)
	rep := holdfast.DrainReport{Node: b.node(), Started: Began, Took: holdfast.Millis(48 * time.Millisecond)}
	var stay []api.Session
	for _, s := range b.sessions {
		if s.Key == "stuck" {
			rep.Left = append(rep.Left, leftover(s))
			stay = append(stay, s)
		}
	}
	rep.Dead = len(b.sessions) - len(stay)
	rep.Released, b.sessions = rep.Dead, stay
	if q.PauseEngine != nil && !*q.PauseEngine {
		rep.Notice = "engine not paused: switched off"
	}
	for _, s := range []holdfast.Step{
		{Name: "kill", Took: holdfast.Millis(41 * time.Millisecond), Count: rep.Dead},
		{Name: "release", Took: holdfast.Millis(3200 * time.Microsecond), Count: rep.Released},
	} {
		progress(s)
		rep.Steps = append(rep.Steps, s)
	}
	return rep, nil
}

// Cordon implements api.NodeService.
func (b *Backend) Cordon() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.draining = b.fault == nil
	return b.fault
}

// Uncordon implements api.NodeService.
func (b *Backend) Uncordon() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.draining = false
	return b.fault
}

// StopAgent implements api.AgentService.
func (b *Backend) StopAgent(keep bool) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.fault == nil && b.Stopped != nil {
		b.Stopped(keep)
	}
	return b.fault
}

// Ready implements api.AgentService.
func (b *Backend) Ready(context.Context) (int, error) { return 73, b.failure() }
