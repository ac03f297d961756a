package job

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"holdfast/internal/platform/child"
)

// Watcher is a process that stands by while a job runs, and removes what the job
// made if its owner dies. The guardian cannot: it knows processes and no engine.
type Watcher struct {
	stdin io.WriteCloser
	ended chan struct{}
}

// StartWatcher starts argv with the job's id as the last argument: a process that
// calls Released on its standard input and, where that says no, Remove. It is in
// a session of its own, where no Ctrl-C reaches it.
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
		_ = cmd.Wait() // told to end, or killed: Sweep does its work then
	}()
	return w, nil
}

// released is what a watcher is told when there is nothing left to do.
const released = "released\n"

// Release ends the watcher, once the job's things are removed, and waits for it.
func (w *Watcher) Release() {
	_, _ = io.WriteString(w.stdin, released) // one that is dead needs no word
	_ = w.stdin.Close()
	<-w.ended
}

// Released waits on the watcher's side, and reports whether its owner said that it
// is done: the kernel closes the pipe of one that dies before.
func Released(stdin io.Reader) bool {
	word, err := io.ReadAll(io.LimitReader(stdin, int64(len(released))))
	return err == nil && string(word) == released
}

// How Remove goes on: what the engine is still making when its asker dies is
// there only some time later.
const (
	removePause = 2 * time.Second
	removeLimit = 2 * time.Minute
)

// Remove removes what a job has made whose owner is dead: what there is at once,
// and what the engine was still making then. It returns when twice in a row
// nothing was there.
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
		select {
		case <-time.After(removePause):
		case <-ctx.Done():
			return fmt.Errorf("remove what job %s left: %w", id, errors.Join(ctx.Err(), err))
		}
	}
}
