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

// ready is the line that a deadman prints when it listens.
const ready = "listening\n"

// Main runs a deadman in the process that Start has started, and returns its exit
// code. dir is the agent's run directory; log receives its log.
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

// announce tells the starter that it can connect, and closes the pipe to it.
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
		return fmt.Errorf("close the starter's pipe: %w", err)
	}
	return nil
}

// lines writes log lines in a goroutine of its own, so that a disk or reader that
// hangs does not block the deadman. Lines that do not fit into its queue are dropped.
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
			_, _ = w.Write(line) // an error cannot be reported
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

// flush waits until everything is written, at most one second. No Write may follow.
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
