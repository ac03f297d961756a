package e2b

import (
	"context"
	"errors"
	"hash/fnv"
	"net/http"
	"slices"
	"strconv"
	"time"

	"connectrpc.com/connect"

	"holdfast"
	"holdfast/internal/control/api"
	"holdfast/internal/control/e2b/envd"
)

// processes is the process service: each process is a detached command of the session.
type processes struct{ d *Server }

// firstPID is above every pid of Linux (PID_MAX_LIMIT, 2^22), so that a command in the
// container that is given such a pid hits no process.
const firstPID = 1 << 23

// pidOf returns the number that stands for a command: a hash of its id.
func pidOf(id string) uint32 {
	h := fnv.New32a()
	_, _ = h.Write([]byte(id)) // never fails
	return firstPID + h.Sum32()%(1<<31-firstPID)
}

// find returns the command that a selector means. One that has ended may be found, while
// it is kept.
func (p processes) find(ctx context.Context, sel *envd.ProcessSelector) (holdfast.Command, error) {
	if _, ok := sel.GetSelector().(*envd.ProcessSelector_Pid); !ok {
		return holdfast.Command{}, notOffered("processes with tags")
	}
	s := sandboxOf(ctx)
	all, err := p.d.o.Agent.Commands(ctx, s.key())
	if errors.Is(err, holdfast.ErrNotFound) {
		return holdfast.Command{}, ended(s.ID)
	}
	if err != nil {
		return holdfast.Command{}, err
	}
	i := slices.IndexFunc(all, func(c holdfast.Command) bool { return pidOf(c.ID) == sel.GetPid() })
	if i < 0 {
		return holdfast.Command{}, gone(sel)
	}
	return all[i], nil
}

// live is find for a command that runs.
func (p processes) live(ctx context.Context, sel *envd.ProcessSelector) (holdfast.Command, error) {
	c, err := p.find(ctx, sel)
	if err == nil && !c.Running() {
		err = gone(sel)
	}
	return c, err
}

func gone(sel *envd.ProcessSelector) error {
	return refuse(http.StatusNotFound, "process with pid %d not found", sel.GetPid())
}

// List lists the processes that run.
func (p processes) List(ctx context.Context, _ *connect.Request[envd.ListRequest]) (*connect.Response[envd.ListResponse], error) {
	s := sandboxOf(ctx)
	all, err := p.d.o.Agent.Commands(ctx, s.key())
	if errors.Is(err, holdfast.ErrNotFound) {
		err = ended(s.ID)
	}
	out := &envd.ListResponse{}
	for _, c := range all {
		if c.Running() {
			out.Processes = append(out.Processes, &envd.ProcessInfo{Pid: pidOf(c.ID), Config: &envd.ProcessConfig{Cmd: c.Command[0], Args: c.Command[1:]}})
		}
	}
	return connect.NewResponse(out), err
}

// request returns the command of a start.
func (p processes) request(ctx context.Context, h http.Header, q *envd.StartRequest) (api.ExecRequest, error) {
	s, config := sandboxOf(ctx), q.GetProcess()
	switch {
	case config.GetCmd() == "":
		return api.ExecRequest{}, invalid("the command is empty")
	case q.Tag != nil:
		return api.ExecRequest{}, notOffered("processes with tags")
	}
	a, err := p.d.account(ctx, s, userOf(h))
	if err != nil {
		return api.ExecRequest{}, err
	}
	dir, err := p.d.place(ctx, s, a, config.GetCwd())
	if err != nil {
		return api.ExecRequest{}, err
	}
	env, err := environment(s, a, config.GetEnvs())
	if err != nil {
		return api.ExecRequest{}, err
	}
	x := api.ExecRequest{
		Command: p.d.program(ctx, s, config.GetCmd(), config.GetArgs()), Env: env, Dir: dir, User: userID(a),
		Stdin: q.Stdin == nil || q.GetStdin(), Hold: true,
	}
	if q.Pty != nil {
		x.TTY, x.Stdin, x.Size = true, true, sizeOf(q.Pty)
	}
	return x, nil
}

func userID(a account) string { return strconv.Itoa(a.uid) + ":" + strconv.Itoa(a.gid) }

func sizeOf(p *envd.PTY) *api.Size {
	most := func(n uint32) uint16 { return uint16(min(n, 1<<15)) }
	return &api.Size{Rows: most(p.GetSize().GetRows()), Cols: most(p.GetSize().GetCols())}
}

// Start starts a process, and reports its output and its end. The time that the caller
// gives the stream is the process's, too.
func (p processes) Start(ctx context.Context, r *connect.Request[envd.StartRequest], stream *connect.ServerStream[envd.StartResponse]) error {
	q, err := p.request(ctx, r.Header(), r.Msg)
	if err != nil {
		return err
	}
	s := sandboxOf(ctx)
	c, err := p.d.o.Agent.StartCommand(ctx, s.key(), q)
	if errors.Is(err, holdfast.ErrNotFound) {
		return ended(s.ID)
	}
	if err != nil {
		return err
	}
	err = p.d.follow(ctx, s, c, 0, pingOf(r.Header()), func(e *envd.ProcessEvent) error { return stream.Send(&envd.StartResponse{Event: e}) })
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		kill, cancel := context.WithTimeout(context.WithoutCancel(ctx), killLimit)
		defer cancel()
		_ = p.d.o.Agent.SignalCommand(kill, s.key(), c.ID, "KILL") // it may have ended
		return ctx.Err()
	}
	return err
}

// Connect reports the output of a process from now on, and its end. Of one that has ended
// it reports all that is kept.
func (p processes) Connect(ctx context.Context, r *connect.Request[envd.ConnectRequest], stream *connect.ServerStream[envd.ConnectResponse]) error {
	c, err := p.find(ctx, r.Msg.GetProcess())
	if err != nil {
		return err
	}
	from := c.Output
	if !c.Running() {
		from = c.Lost
	}
	return p.d.follow(ctx, sandboxOf(ctx), c, from, pingOf(r.Header()), func(e *envd.ProcessEvent) error { return stream.Send(&envd.ConnectResponse{Event: e}) })
}

// pingOf returns the interval at which a caller wants events.
func pingOf(h http.Header) time.Duration {
	n, err := strconv.Atoi(h.Get("Keepalive-Ping-Interval"))
	if err != nil || n > int(defaultPing/time.Second) {
		return defaultPing
	}
	return max(shortestPing, time.Duration(n)*time.Second)
}

// SendInput writes to a process. It returns when the input is on its way.
func (p processes) SendInput(ctx context.Context, r *connect.Request[envd.SendInputRequest]) (*connect.Response[envd.SendInputResponse], error) {
	c, err := p.live(ctx, r.Msg.GetProcess())
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&envd.SendInputResponse{}), p.d.inputs.write(ctx, sandboxOf(ctx), c, bytesOf(r.Msg.GetInput()))
}

// bytesOf returns an input.
func bytesOf(in *envd.ProcessInput) []byte {
	if b := in.GetStdin(); b != nil {
		return b
	}
	return in.GetPty()
}

// StreamInput writes to a process what a stream has.
func (p processes) StreamInput(ctx context.Context, stream *connect.ClientStream[envd.StreamInputRequest]) (*connect.Response[envd.StreamInputResponse], error) {
	var c holdfast.Command
	for stream.Receive() {
		var err error
		switch e := stream.Msg().GetEvent().(type) {
		case *envd.StreamInputRequest_Start:
			c, err = p.live(ctx, e.Start.GetProcess())
		case *envd.StreamInputRequest_Data:
			if c.ID == "" {
				return nil, invalid("the stream does not begin with a process")
			}
			err = p.d.inputs.write(ctx, sandboxOf(ctx), c, bytesOf(e.Data.GetInput()))
		}
		if err != nil {
			return nil, err
		}
	}
	return connect.NewResponse(&envd.StreamInputResponse{}), stream.Err()
}

// CloseStdin ends the input of a process.
func (p processes) CloseStdin(ctx context.Context, r *connect.Request[envd.CloseStdinRequest]) (*connect.Response[envd.CloseStdinResponse], error) {
	c, err := p.live(ctx, r.Msg.GetProcess())
	switch {
	case err != nil:
		return nil, err
	case c.TTY:
		return nil, invalid("a terminal's input ends with Ctrl-D (0x04)")
	}
	return connect.NewResponse(&envd.CloseStdinResponse{}), p.d.inputs.end(ctx, sandboxOf(ctx), c)
}

// Update sets the size of a terminal.
func (p processes) Update(ctx context.Context, r *connect.Request[envd.UpdateRequest]) (*connect.Response[envd.UpdateResponse], error) {
	c, err := p.live(ctx, r.Msg.GetProcess())
	switch {
	case err != nil:
		return nil, err
	case !c.TTY:
		return nil, invalid("the process has no terminal")
	case r.Msg.Pty != nil:
		err = p.d.inputs.resize(ctx, sandboxOf(ctx), c, *sizeOf(r.Msg.Pty))
	}
	return connect.NewResponse(&envd.UpdateResponse{}), err
}

// SendSignal sends a signal to a process.
func (p processes) SendSignal(ctx context.Context, r *connect.Request[envd.SendSignalRequest]) (*connect.Response[envd.SendSignalResponse], error) {
	name, ok := map[envd.Signal]string{envd.Signal_SIGNAL_SIGTERM: "TERM", envd.Signal_SIGNAL_SIGKILL: "KILL"}[r.Msg.GetSignal()]
	if !ok {
		return nil, invalid("there is no signal %d", r.Msg.GetSignal())
	}
	c, err := p.live(ctx, r.Msg.GetProcess())
	if err == nil {
		err = p.d.o.Agent.SignalCommand(ctx, sandboxOf(ctx).key(), c.ID, name)
		if errors.Is(err, holdfast.ErrNotFound) {
			err = gone(r.Msg.GetProcess())
		}
	}
	return connect.NewResponse(&envd.SendSignalResponse{}), err
}

// endOf is the event of a command's end.
func endOf(code int) *envd.ProcessEvent {
	status := "exit status " + strconv.Itoa(code)
	e := &envd.ProcessEvent_EndEvent{ExitCode: int32(code), Exited: true, Status: status}
	if code != 0 {
		e.Error = &status
	}
	return &envd.ProcessEvent{Event: &envd.ProcessEvent_End{End: e}}
}

// output returns the event of output.
func output(tty, stderr bool, b []byte) *envd.ProcessEvent {
	data := &envd.ProcessEvent_DataEvent{Output: &envd.ProcessEvent_DataEvent_Stdout{Stdout: b}}
	switch {
	case tty:
		data.Output = &envd.ProcessEvent_DataEvent_Pty{Pty: b}
	case stderr:
		data.Output = &envd.ProcessEvent_DataEvent_Stderr{Stderr: b}
	}
	return &envd.ProcessEvent{Event: &envd.ProcessEvent_Data{Data: data}}
}
