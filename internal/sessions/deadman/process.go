package deadman

import (
	"fmt"
	"io"
	"log/slog"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"holdfast/internal/platform/linux/standby"
)

// ready is what a deadman prints when it listens.
const ready = "listening\n"

// Main is a deadman's whole life, in the process that Start made. dir is the
// agent's run directory, log where it writes its log. It returns the exit code.
func Main(dir string, log io.Writer) int { return live(dir, log, protocol) }

func live(dir string, log io.Writer, version int) int {
	term := make(chan os.Signal, 1)
	standby.Settle(2, term)
	lines := newLines(log)
	defer lines.flush()
	s, err := newServer(dir, slog.New(slog.NewTextHandler(lines, nil)))
	if err == nil {
		defer s.close()
		s.version = version
		go s.watch(term)
		if err = announce(); err == nil {
			err = s.run()
		}
	}
	if err != nil {
		fmt.Fprintln(lines, "deadman:", err)
		return 1
	}
	return 0
}

// announce tells the starter that it can connect, and lets go of the pipe.
func announce() error {
	if _, err := os.Stdout.WriteString(ready); err != nil {
		return fmt.Errorf("tell the starter: %w", err)
	}
	null, err := unix.Open(os.DevNull, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open %s: %w", os.DevNull, err)
	}
	defer unix.Close(null)
	if err := unix.Dup3(null, 1, 0); err != nil {
		return fmt.Errorf("let go of the starter's pipe: %w", err)
	}
	return nil
}

// lines writes log lines in a goroutine of its own: a disk or a reader that
// hangs must not keep the deadman from its work. What does not fit is dropped.
type lines struct {
	queue chan []byte
	done  chan struct{}
}

func newLines(w io.Writer) *lines {
	l := &lines{queue: make(chan []byte, 256), done: make(chan struct{})}
	go func() {
		defer close(l.done)
		for line := range l.queue {
			if line == nil {
				return
			}
			_, _ = w.Write(line) // there is nobody to tell
		}
	}()
	return l
}

// Write implements io.Writer.
func (l *lines) Write(line []byte) (int, error) {
	select {
	case l.queue <- append([]byte(nil), line...):
	default:
	}
	return len(line), nil
}

// flush waits, for a moment, until everything is written. It is the end.
func (l *lines) flush() {
	late := time.After(time.Second)
	select {
	case l.queue <- nil:
	case <-late:
		return
	}
	select {
	case <-l.done:
	case <-late:
	}
}
