package job

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"holdfast/internal/platform/child"
	"holdfast/internal/platform/tasks"
)

// Watcher is a process that runs beside a job and removes what the job made if
// its owner dies. The guardian cannot do that, because it manages processes and
// does not use an engine.
type Watcher struct {
	stdin io.WriteCloser
	ended chan struct{}
}

// StartWatcher starts argv with the job's id as the last argument. That process
// calls Released on its standard input and, if that returns false, Remove. It
// runs in its own session, so that Ctrl-C does not reach it.
func StartWatcher(argv []string, id string) (*Watcher, error) {
	cmd := child.Command(append(argv[:len(argv):len(argv)], id), append(os.Environ(), "GOMAXPROCS=1")...)
	stdin, err := cmd.StdinPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		return nil, fmt.Errorf("start the job's watcher: %w", err)
	}
	w := &Watcher{stdin: stdin, ended: make(chan struct{})}
	go func() {
		defer close(w.ended)
		_ = cmd.Wait() // it was told to exit, or was killed: then Sweep cleans up
	}()
	return w, nil
}

// released is the message that tells a watcher that nothing is left to do.
const released = "released\n"

// Release tells the watcher to exit, once the job's objects are removed, and
// waits for it.
func (w *Watcher) Release() {
	_, _ = io.WriteString(w.stdin, released) // fails only if the watcher is dead
	_ = w.stdin.Close()
	<-w.ended
}

// End is Release. With left, the objects could not be removed: the watcher then tries it
// again, and End does not wait for it.
func (w *Watcher) End(left bool) {
	if left {
		_ = w.stdin.Close()
		return
	}
	w.Release()
}

// Released waits in the watcher, and reports whether the owner finished its
// clean-up. If the owner dies before, the kernel closes the pipe.
func Released(stdin io.Reader) bool {
	word, err := io.ReadAll(io.LimitReader(stdin, int64(len(released))))
	return err == nil && string(word) == released
}

// How Remove polls: what the engine is still creating when its client dies
// appears only some time later.
const (
	removePause = 2 * time.Second
	removeLimit = 2 * time.Minute
)

// Remove removes what a job with a dead owner made, including objects that the
// engine was still creating. It returns when two checks in a row find nothing.
func Remove(ctx context.Context, e Cleaner, id string) error {
	ctx, cancel := context.WithTimeout(ctx, removeLimit)
	defer cancel()
	for quiet := 0; ; {
		n, err := removeJob(ctx, e, id)
		if quiet++; n > 0 || err != nil {
			quiet = 0
		}
		if quiet == 2 {
			return nil
		}
		if tasks.Sleep(ctx, removePause) != nil {
			return fmt.Errorf("remove what job %s left: %w", id, errors.Join(ctx.Err(), err))
		}
	}
}
