// Package supervise runs a server and starts it again when it crashes, without a refused
// connection in between. Beside each of the server's listeners it keeps a spare listening
// socket (park.Spare): when the server's listener is gone, the kernel gives new
// connections to the spare, where they wait for the next server. The server needs no
// support for that.
package supervise

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"holdfast"
	"holdfast/internal/hosts/protect"
	"holdfast/internal/hosts/protect/park"
	"holdfast/internal/platform/linux/listenfd"
	"holdfast/internal/platform/linux/sockdiag"
)

// Options say what to run.
type Options struct {
	Command        []string
	Stdout, Stderr io.Writer
	// User runs the server as another user; nil: as this process's.
	User *User
	// GiveUp is the longest time without a listening server: then the waiting connections
	// are refused, and Run returns if no server runs. It must be over 0.
	GiveUp time.Duration
	// Backoff is the pause after the first crash; it doubles with each further one, up to
	// MaxBackoff. It must be over 0.
	Backoff time.Duration
	// Signals are passed to the server. SIGTERM and SIGINT also end Run, when the server
	// has ended.
	Signals <-chan os.Signal
	// LockDir is protect.Options.LockDir.
	LockDir string
	// Stored are the spares that an earlier process left with the service manager.
	Stored []*listenfd.Socket
	// Restarts reports whether the service manager is about to start this service again
	// after SIGTERM, so that the spares stay with it; nil: never.
	Restarts func(context.Context) bool
	// Ready is called when the server listens for the first time; it may be nil.
	Ready func()
	Log   *slog.Logger
}

// User is the user of a server.
type User struct{ UID, GID uint32 }

// MaxBackoff is the longest pause between two starts.
const MaxBackoff = 5 * time.Second

const (
	// soon is the interval at which the listeners are checked while a server is awaited,
	// and seldom while it listens: only for the record, because the kernel uses the spare
	// in any case. One check takes about 0.2 ms.
	soon   = 5 * time.Millisecond
	seldom = 100 * time.Millisecond
	// stable is how long a server has to listen before its next crash counts as the first.
	stable = 10 * time.Second
)

// ErrGaveUp reports that no server has listened for Options.GiveUp.
var ErrGaveUp = errors.New("gave up")

// Run runs the server until it exits with code 0, or until SIGTERM or SIGINT has ended it.
// It returns the last exit code, 128 + n if signal n ended the server. When ctx ends, Run
// returns as after SIGTERM. Errors: ErrGaveUp, *protect.CommandError at the first start.
func Run(ctx context.Context, o Options) (code int, err error) {
	if err := protect.NeedsRoot(); err != nil {
		return 0, err
	}
	path, err := exec.LookPath(o.Command[0])
	if err != nil {
		return 0, &protect.CommandError{Name: o.Command[0], Err: err}
	}
	diag, err := sockdiag.Open()
	if err != nil {
		return 0, err
	}
	defer diag.Close()
	s := &supervisor{Options: o, path: path, diag: diag, places: make(map[park.Place]*spare), foreign: make(map[uint64]bool), outage: time.Now()}
	defer func() { s.end(s.keep) }()
	if err := s.begin(); err != nil {
		return 0, err
	}
	return s.run(ctx)
}

// supervisor is a running Run. One goroutine uses it.
type supervisor struct {
	Options
	path    string
	diag    *sockdiag.Diag
	places  map[park.Place]*spare
	foreign map[uint64]bool // cookies of listeners that are not the server's
	hook    io.Closer       // nil: no server is expected to bind beside a spare now

	server  *server   // nil: none runs
	starts  int       // of servers
	outage  time.Time // since when no server listens, or not on all places; zero: it does
	up      time.Time // since when it does
	crashes int       // in succession
	said    bool      // Ready was called
	gaveUp  bool      // in this outage
	stop    bool      // no further start
	keep    bool      // the spares stay with the service manager
}

// begin takes over the stored spares, and starts the server.
func (s *supervisor) begin() error {
	ls, err := s.diag.Listeners(0)
	if err != nil {
		return err
	}
	for _, l := range ls {
		s.foreign[l.Cookie] = true
	}
	for _, stored := range s.Stored {
		if err := s.adopt(stored, ls); err != nil {
			s.Log.Warn("run: a stored socket is not used", "err", err)
		}
	}
	s.prepare()
	if s.server, err = s.start(); err != nil {
		return &protect.CommandError{Name: s.Command[0], Err: err}
	}
	return nil
}

func (s *supervisor) run(ctx context.Context) (code int, err error) {
	tick := time.NewTimer(0)
	defer tick.Stop()
	again := time.NewTimer(time.Hour)
	again.Stop()
	defer again.Stop()
	for {
		select {
		case <-ctx.Done():
			ctx = context.Background()
			if s.signal(ctx, unix.SIGTERM) {
				return code, nil
			}
		case sig := <-s.Signals:
			if n, ok := sig.(unix.Signal); ok && s.signal(ctx, n) {
				return code, nil
			}
		case <-s.ended():
			code = s.server.code
			pause, over := s.crashed(ctx)
			if over {
				return code, nil
			}
			again.Reset(pause)
			tick.Reset(0)
		case <-again.C:
			s.prepare()
			if s.server, err = s.start(); err != nil {
				s.Log.Error("run: the server cannot be started", "err", err)
				again.Reset(s.pause())
			}
		case <-tick.C:
			if err := s.look(); err != nil {
				s.Log.Warn("run: look for the server's sockets", "err", err)
			}
			if s.outage.IsZero() {
				tick.Reset(seldom)
			} else {
				tick.Reset(soon)
			}
			if s.tooLong() && s.server == nil {
				return code, s.gone(code)
			}
		}
	}
}

// ended is closed when the server has ended; nil without one.
func (s *supervisor) ended() <-chan struct{} {
	if s.server == nil {
		return nil
	}
	return s.server.ended
}

// signal passes a signal to the server. over: it ends Run, and no server runs.
func (s *supervisor) signal(ctx context.Context, sig unix.Signal) (over bool) {
	if sig == unix.SIGTERM || sig == unix.SIGINT {
		if !s.stop {
			s.stop, s.keep = true, s.restarts(ctx)
			if !s.keep {
				s.end(false) // clients are refused as without a supervisor
			}
		}
	} else {
		s.prepare() // the server may close its listeners, and open them again
	}
	if s.server != nil {
		_ = s.server.cmd.Process.Signal(sig) // it may have ended
	}
	return s.stop && s.server == nil
}

// restarts asks whether the service manager restarts this service.
func (s *supervisor) restarts(ctx context.Context) bool {
	return s.Restarts != nil && s.Restarts(ctx)
}

// crashed decides what follows the end of the server. over: nothing.
func (s *supervisor) crashed(ctx context.Context) (pause time.Duration, over bool) {
	how := s.server.cmd.ProcessState.String()
	s.server.killGroup()
	code := s.server.code
	s.server = nil
	if s.stop || code == 0 {
		// systemd sends SIGTERM to the server too, which may end before this process has read its own.
		s.keep = s.keep || !s.stop && s.restarts(ctx)
		s.Log.Info("run: the server has ended", "how", how)
		return 0, true
	}
	if s.outage.IsZero() {
		if time.Since(s.up) >= stable {
			s.crashes = 0
		}
		s.down(time.Now())
	}
	pause = s.pause()
	s.Log.Warn("run: the server has crashed", "how", how, "starts_again_in", pause)
	return pause, false
}

// pause returns the pause before the next start, and doubles the one after it.
func (s *supervisor) pause() time.Duration {
	pause := min(s.Backoff<<min(s.crashes, 20), max(MaxBackoff, s.Backoff))
	s.crashes++
	return pause
}

// tooLong ends the spares when the server has not listened for too long.
func (s *supervisor) tooLong() bool {
	if s.outage.IsZero() || time.Since(s.outage) < s.GiveUp {
		return false
	}
	if !s.gaveUp {
		s.gaveUp = true
		s.dropDown()
	}
	return true
}

func (s *supervisor) gone(code int) error {
	return holdfast.WithHint(fmt.Errorf("%w: %s has not listened for %v, in %d starts; its last exit code is %d", ErrGaveUp, filepath.Base(s.Command[0]), s.GiveUp, s.starts, code),
		"its own output above says why; --give-up sets how long to wait")
}
