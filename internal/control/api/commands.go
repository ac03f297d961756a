package api

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"holdfast"
)

// CommandService runs commands in the containers of sessions.
type CommandService interface {
	// Exec runs a command in the container and returns its exit code once
	// its output is written. holdfast.ErrNotFound.
	Exec(ctx context.Context, key holdfast.SessionKey, e Exec) (exitCode int, err error)

	// StartCommand starts a detached command, and returns when the engine has accepted
	// it. holdfast.ErrNotFound, holdfast.ErrBusy.
	StartCommand(ctx context.Context, key holdfast.SessionKey, q ExecRequest) (holdfast.Command, error)

	// Commands lists the detached commands of a session on this node, in the order of
	// their start: those that run, and those that ended a short time ago.
	Commands(ctx context.Context, key holdfast.SessionKey) ([]holdfast.Command, error)

	// SignalCommand sends a signal to a detached command. holdfast.ErrNotFound if it
	// does not run.
	SignalCommand(ctx context.Context, key holdfast.SessionKey, id string, sig syscall.Signal) error

	// AttachCommand joins a detached command at an offset of its output; below 0 it
	// counts from the end. The stream has the frames of package frame.
	// holdfast.ErrNotFound, holdfast.ErrBusy.
	AttachCommand(ctx context.Context, key holdfast.SessionKey, id string, q AttachRequest) (io.ReadWriteCloser, error)
}

// Commands is the answer to a list of detached commands.
type Commands struct {
	Commands []holdfast.Command `json:"commands"`
}

// SignalRequest asks for a signal to a detached command.
type SignalRequest struct {
	// Signal is a name such as TERM or SIGTERM, or a number.
	Signal string `json:"signal"`
}

// AttachRequest joins a detached command; package frame describes what follows it.
type AttachRequest struct {
	// Offset is the position in all output at which to begin. Below 0 it counts from
	// the end of the present output.
	Offset int64 `json:"offset,omitempty"`
	// Hold makes the command wait for this caller rather than lose output that the
	// caller has not read: 10 s at most without progress.
	Hold bool `json:"hold,omitempty"`
}

type commandHandlers struct {
	commands  CommandService
	sessions  SessionService
	pingEvery time.Duration // 0 is pingEvery
}

func commandRoutes(c CommandService, s SessionService, pingEvery time.Duration) []route {
	h := commandHandlers{c, s, pingEvery}
	return []route{
		{method: "POST", path: "/v1/sessions/{key}/exec", id: "execSession", summary: "Run a command in the container, over an upgrade to holdfast-exec/1.",
			access: forAdmin, at: atItsOwner, stream: true, request: ExecRequest{}, status: http.StatusSwitchingProtocols, handle: h.exec},
		{method: "POST", path: "/v1/sessions/{key}/commands", id: "startCommand", summary: "Start a detached command in the container; it runs until it ends or the session does.",
			access: forAdmin, at: atItsOwner, limit: limitStop, request: ExecRequest{}, answer: holdfast.Command{}, handle: h.start},
		{method: "GET", path: "/v1/sessions/{key}/commands", id: "listCommands", summary: "The session's detached commands, by their start.",
			access: forAdmin, at: atItsOwner, limit: limitAsk, answer: Commands{}, handle: asking(h.list)},
		{method: "POST", path: "/v1/sessions/{key}/commands/{id}/signal", id: "signalCommand", summary: "Send a signal to a detached command.",
			access: forAdmin, at: atItsOwner, limit: limitAsk, request: SignalRequest{}, status: http.StatusNoContent, handle: h.signal},
		{method: "POST", path: "/v1/sessions/{key}/commands/{id}/attach", id: "attachCommand", summary: "Read a detached command's output from an offset on, and send it input, over an upgrade to holdfast-exec/1.",
			access: forAdmin, at: atItsOwner, stream: true, request: AttachRequest{}, status: http.StatusSwitchingProtocols, handle: h.attach},
	}
}

func (h commandHandlers) start(w http.ResponseWriter, r *http.Request) error {
	key, err := keyOf(r)
	if err != nil {
		return err
	}
	q, err := execRequest(w, r)
	if err != nil {
		return err
	}
	c, err := h.commands.StartCommand(r.Context(), key, q)
	if err != nil {
		return err
	}
	note(r.Context(), "id", c.ID)
	return writeJSON(w, c)
}

// list answers for a session that has ended, too, while some of its commands are kept.
func (h commandHandlers) list(r *http.Request) (Commands, error) {
	key, err := keyOf(r)
	if err != nil {
		return Commands{}, err
	}
	all, err := h.commands.Commands(r.Context(), key)
	if err == nil && len(all) == 0 {
		_, err = h.sessions.Session(r.Context(), key)
	}
	return Commands{notNil(all)}, err
}

func (h commandHandlers) signal(w http.ResponseWriter, r *http.Request) error {
	key, err := keyOf(r)
	if err != nil {
		return err
	}
	return changing(func(r *http.Request, q SignalRequest) error {
		sig, err := parseSignal(q.Signal)
		if err != nil {
			return err
		}
		note(r.Context(), "id", bounded(r.PathValue("id")))
		note(r.Context(), "signal", unix.SignalName(sig))
		return h.commands.SignalCommand(r.Context(), key, r.PathValue("id"), sig)
	})(w, r)
}

// parseSignal reads TERM, SIGTERM or 15.
func parseSignal(text string) (syscall.Signal, error) {
	if n, err := strconv.Atoi(text); err == nil && unix.SignalName(syscall.Signal(n)) != "" {
		return syscall.Signal(n), nil
	}
	if sig := unix.SignalNum("SIG" + strings.TrimPrefix(strings.ToUpper(text), "SIG")); sig != 0 {
		return sig, nil
	}
	return 0, &Error{Code: CodeBadRequest, Message: fmt.Sprintf("there is no signal %q", bounded(text)), Advice: "name one such as TERM, KILL, INT, HUP or USR1"}
}

// attach joins a client and a detached command.
func (h commandHandlers) attach(w http.ResponseWriter, r *http.Request) error {
	key, err := keyOf(r)
	if err != nil {
		return err
	}
	var q AttachRequest
	if err := decode(w, r, &q); err != nil {
		return err
	}
	if err := upgrades(r); err != nil {
		return err
	}
	note(r.Context(), "id", bounded(r.PathValue("id")))
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	command, err := h.commands.AttachCommand(ctx, key, r.PathValue("id"), q)
	if err != nil {
		return err
	}
	defer command.Close()
	return switchTo(w, func(conn net.Conn, in *bufio.Reader) error {
		join(ctx, conn, in, command)
		return nil
	})
}

// join copies frames between a client and a command until one of them closes its side, or
// ctx is done. It closes both.
func join(ctx context.Context, client io.WriteCloser, in io.Reader, command io.ReadWriteCloser) {
	stop := context.AfterFunc(ctx, func() {
		client.Close()
		command.Close()
	})
	defer stop()
	heard := make(chan struct{})
	go func() {
		defer close(heard)
		_, _ = io.Copy(command, in)
		command.Close()
	}()
	_, _ = io.Copy(client, command)
	client.Close()
	<-heard
}
