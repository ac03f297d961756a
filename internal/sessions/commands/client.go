package commands

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"holdfast"
	"holdfast/internal/platform/child"
	"holdfast/internal/platform/frame"
	"holdfast/internal/platform/tasks"
)

// Client is the agent's side. Its methods may be called from any goroutine.
type Client struct {
	dir  string
	argv []string
	log  *slog.Logger
	http *http.Client

	starting sync.Mutex // one keeper is started at a time
	spawned  chan struct{}
	figures  atomic.Pointer[totals]
}

// NewClient returns the client of the keeper in a run directory. argv is a command line
// whose process calls Main. Nothing is started before the first command.
func NewClient(dir string, argv []string, log *slog.Logger) *Client {
	c := &Client{dir: dir, argv: argv, log: log, spawned: make(chan struct{}, 1)}
	c.http = &http.Client{Transport: &http.Transport{
		DialContext:       func(ctx context.Context, _, _ string) (net.Conn, error) { return c.dial(ctx) },
		DisableKeepAlives: true, // a keeper that ends would reset them
	}}
	return c
}

// inDir calls f with the path of the keeper's socket. The path fits into the 108 bytes of
// sun_path (unix(7)) for a directory of any length, and is valid until f returns.
func (c *Client) inDir(f func(path string) error) error {
	d, err := os.Open(c.dir)
	if err != nil {
		return err
	}
	defer d.Close()
	return f("/proc/self/fd/" + strconv.Itoa(int(d.Fd())) + "/" + socketName)
}

func (c *Client) dial(ctx context.Context) (conn net.Conn, err error) {
	err = c.inDir(func(path string) error {
		conn, err = (&net.Dialer{}).DialContext(ctx, "unix", path)
		return err
	})
	return conn, err
}

// Start starts a command and returns when the engine has accepted it. holdfast.ErrBusy,
// and the errors of engine.Exec.
func (c *Client) Start(ctx context.Context, q Request) (holdfast.Command, error) {
	for {
		var started holdfast.Command
		err := c.ask(ctx, http.MethodPost, "/commands", q, &started)
		switch {
		case absent(err):
			err = c.spawn()
		case errors.Is(err, errClosing):
			err = nil // its socket is about to go
			_ = tasks.Sleep(ctx, 10*time.Millisecond)
		default:
			return started, err
		}
		if err = errors.Join(err, ctx.Err()); err != nil {
			return started, err
		}
	}
}

// absent reports whether an error means that there is no keeper.
func absent(err error) bool {
	return errors.Is(err, os.ErrNotExist) || errors.Is(err, syscall.ECONNREFUSED)
}

// List returns the commands of a session on this node, in the order of their start.
func (c *Client) List(ctx context.Context, key holdfast.SessionKey) ([]holdfast.Command, error) {
	list := []holdfast.Command{}
	err := c.ask(ctx, http.MethodGet, "/commands/"+url.PathEscape(string(key)), nil, &list)
	if absent(err) {
		return list, nil
	}
	return list, err
}

// Signal sends a signal to a command. holdfast.ErrNotFound for one that does not run,
// engine.ErrUnsupported.
func (c *Client) Signal(ctx context.Context, key holdfast.SessionKey, id string, sig syscall.Signal) error {
	err := c.ask(ctx, http.MethodPost, pathOf(key, id, "/signal"), signalRequest{int(sig)}, nil)
	if absent(err) {
		return unknown(key, id)
	}
	return err
}

// Attach joins a command. The stream has the frames of package frame, from the end of the
// upgrade on. holdfast.ErrNotFound, holdfast.ErrBusy, ErrOffset.
func (c *Client) Attach(ctx context.Context, key holdfast.SessionKey, id string, q Attach) (io.ReadWriteCloser, error) {
	r, err := request(ctx, http.MethodPost, pathOf(key, id, "/attach"), q)
	if err != nil {
		return nil, err
	}
	frame.Request(r)
	resp, err := c.send(r)
	if absent(err) {
		return nil, unknown(key, id)
	} else if err != nil {
		return nil, err
	}
	conn, ok := frame.Upgraded(resp)
	if !ok {
		return nil, fmt.Errorf("the command keeper answers with status %s", resp.Status)
	}
	return conn, nil
}

func pathOf(key holdfast.SessionKey, id, what string) string {
	return "/commands/" + url.PathEscape(string(key)) + "/" + url.PathEscape(id) + what
}

// Leave makes the keeper, if there is one, end once no command runs.
func (c *Client) Leave(ctx context.Context) {
	if err := c.ask(ctx, http.MethodPost, "/leave", nil, nil); err != nil && !absent(err) {
		c.log.Warn("the command keeper stays for a minute", "err", err)
	}
}

// ask sends a request and reads the answer into v, if v is not nil.
func (c *Client) ask(ctx context.Context, method, path string, q, v any) error {
	resp, err := c.open(ctx, method, path, q)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if v == nil {
		return nil
	}
	if err := json.NewDecoder(io.LimitReader(resp.Body, maxMessage)).Decode(v); err != nil {
		return fmt.Errorf("read the command keeper's answer: %w", err)
	}
	return nil
}

func request(ctx context.Context, method, path string, q any) (*http.Request, error) {
	b, err := json.Marshal(q)
	if err != nil {
		return nil, err
	}
	return http.NewRequestWithContext(ctx, method, "http://keeper"+path, bytes.NewReader(b))
}

// open sends a request and returns the answer, whose body the caller closes.
func (c *Client) open(ctx context.Context, method, path string, q any) (*http.Response, error) {
	r, err := request(ctx, method, path, q)
	if err != nil {
		return nil, err
	}
	return c.send(r)
}

// send sends a request. An answer with a failure is an error.
func (c *Client) send(r *http.Request) (*http.Response, error) {
	resp, err := c.http.Do(r)
	if err != nil {
		return nil, fmt.Errorf("ask the command keeper: %w", err)
	}
	if resp.StatusCode < http.StatusBadRequest {
		return resp, nil
	}
	defer resp.Body.Close()
	f := &failure{}
	if err := json.NewDecoder(io.LimitReader(resp.Body, maxMessage)).Decode(f); err != nil || f.Text == "" {
		return nil, fmt.Errorf("the command keeper answers with status %s", resp.Status)
	}
	return nil, f
}

// maxLog is the size in bytes from which on the keeper's log is truncated.
const maxLog = 1 << 20

// spawn starts a keeper, unless one listens. Connections wait in its socket until it
// serves.
func (c *Client) spawn() error {
	c.starting.Lock()
	defer c.starting.Unlock()
	if conn, err := c.dial(context.Background()); err == nil {
		return conn.Close() // another caller has started it
	}
	var f *os.File
	if err := c.inDir(func(path string) (err error) {
		f, err = listen(path)
		return err
	}); err != nil {
		return fmt.Errorf("start the command keeper: %w", err)
	}
	defer f.Close()
	log, err := openLog(filepath.Join(c.dir, "commands.log"))
	if err != nil {
		return fmt.Errorf("start the command keeper: %w", err)
	}
	defer log.Close()
	cmd := child.Command(c.argv, "PATH="+os.Getenv("PATH"), "DOCKER_HOST="+os.Getenv("DOCKER_HOST"), "GODEBUG=madvdontneed=1")
	cmd.Stderr = log
	cmd.ExtraFiles = []*os.File{f}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start the command keeper: %w", err)
	}
	c.log.Info("started the command keeper", "pid", cmd.Process.Pid)
	go func() { _ = cmd.Wait() }() // its end is noticed by its connections
	select {
	case c.spawned <- struct{}{}:
	default:
	}
	return nil
}

// listen makes the keeper's socket, with access for this user only.
func listen(path string) (*os.File, error) {
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	old := syscall.Umask(0o177)
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	syscall.Umask(old)
	if err != nil {
		return nil, err
	}
	l.SetUnlinkOnClose(false)
	defer l.Close()
	return l.File()
}

func openLog(path string) (*os.File, error) {
	flags := os.O_CREATE | os.O_WRONLY | os.O_APPEND
	if st, err := os.Stat(path); err == nil && st.Size() > maxLog {
		flags |= os.O_TRUNC
	}
	return os.OpenFile(path, flags, 0o600)
}

// Run tells the keeper that there is an agent, and follows the keeper's figures, until ctx
// is done.
func (c *Client) Run(ctx context.Context) error {
	for {
		if err := c.follow(ctx); err != nil && ctx.Err() == nil {
			if last := c.figures.Load(); last != nil && last.Running > 0 {
				c.log.Error("the command keeper has died: the output of its commands is lost, and they run until their sessions end", "commands", last.Running, "err", err)
			}
		}
		c.figures.Store(&totals{})
		select {
		case <-c.spawned:
		case <-ctx.Done():
			return nil
		}
	}
}

// follow follows one keeper until it ends.
func (c *Client) follow(ctx context.Context) error {
	resp, err := c.open(ctx, http.MethodGet, "/totals", nil)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	for d := json.NewDecoder(resp.Body); ; {
		var now totals
		if err := d.Decode(&now); err != nil {
			return err
		}
		c.figures.Store(&now)
	}
}
