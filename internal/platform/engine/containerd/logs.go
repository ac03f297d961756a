package containerd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"holdfast/internal/platform/engine"
	"holdfast/internal/platform/linux/flock"
	"holdfast/internal/platform/tasks"
)

// How often a follower polls for more output, and for the container's end.
const (
	followEvery = 20 * time.Millisecond
	aliveEvery  = 200 * time.Millisecond
)

// wholeLimit bounds the wait for the last output of an ended container.
const wholeLimit = 10 * time.Second

// Logs copies a container's output to w, both streams interleaved: its last 8 to 16
// MiB. With Follow it returns when the container has ended, or with ctx's error. A
// line's time is that of its reading.
func (e *Engine) Logs(ctx context.Context, id string, o engine.LogOptions, w io.Writer) error {
	ctx = e.in(ctx)
	raw, err := e.find(ctx, id)
	if err != nil {
		return e.fail(ctx, err, "read the logs of container %s", id)
	}
	dir := recordOf(raw).Dir
	if dir == "" {
		return fmt.Errorf("read the logs of container %s: it was not made by Holdfast", id)
	}
	f := follower{e: e, id: raw.ID, dir: dir, out: logOutput{w: w, times: o.Timestamps, begin: true}}
	if err := f.copy(ctx, o); err != nil {
		if f.out.err != nil {
			return fmt.Errorf("write the logs of container %s: %w", id, f.out.err)
		}
		return e.fail(ctx, err, "read the logs of container %s", id)
	}
	return nil
}

// follower copies one log.
type follower struct {
	e   *Engine
	id  string
	dir string
	log *logReader
	out logOutput
}

func (f *follower) copy(ctx context.Context, o engine.LogOptions) error {
	ended, err := f.ended(ctx)
	if err != nil {
		return err
	}
	if ended {
		f.untilWhole(ctx)
	}
	if f.log, err = openReader(f.dir); err != nil {
		return err
	}
	defer func() { _ = f.log.close() }()
	if err := f.tail(o.Tail); err != nil {
		return err
	}
	for o.Follow && !ended {
		if ended, err = f.wait(ctx); err != nil {
			return err
		}
		if err := f.rest(); err != nil {
			return err
		}
	}
	return ctx.Err()
}

// tail writes the last n lines, or all if n is below 0.
func (f *follower) tail(n int) error {
	if n < 0 {
		return f.rest()
	}
	var kept []entry
	lines := 0
	for {
		e, err := f.log.next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		kept = append(kept, e)
		if strings.HasSuffix(e.text, "\n") {
			lines++
		}
		for lines > n || n == 0 && len(kept) > 0 {
			if strings.HasSuffix(kept[0].text, "\n") {
				lines--
			}
			kept = kept[1:]
		}
	}
	for _, e := range kept {
		if err := f.out.write(e); err != nil {
			return err
		}
	}
	return nil
}

// rest writes all records that are there.
func (f *follower) rest() error {
	for {
		e, err := f.log.next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err == nil {
			err = f.out.write(e)
		}
		if err != nil {
			return err
		}
	}
}

// wait returns when there may be more. ended reports that it is the last output.
func (f *follower) wait(ctx context.Context) (ended bool, err error) {
	for begin := time.Now(); time.Since(begin) < aliveEvery; {
		if tasks.Sleep(ctx, followEvery) != nil {
			return false, ctx.Err()
		}
		if f.log.more() {
			return false, nil
		}
	}
	if ended, err = f.ended(ctx); ended {
		f.untilWhole(ctx)
	}
	return ended, err
}

// ended reports whether the container does not run. If it runs and no process reads
// its output, this one begins to read it.
func (f *follower) ended(ctx context.Context) (bool, error) {
	t, err := f.e.task(ctx, f.id)
	if err != nil && !isGone(err) {
		return false, err
	}
	s, err := readState(f.dir)
	if err != nil {
		return false, err
	}
	word := stateOf(t, s)
	if word == "running" || word == "paused" {
		return false, f.e.pumps.adopt(f.id, f.dir)
	}
	return true, nil
}

// untilWhole waits until no process writes the log any more.
func (f *follower) untilWhole(ctx context.Context) {
	for begin := time.Now(); time.Since(begin) < wholeLimit; {
		lock, err := flock.Open(filepath.Join(f.dir, lockFile), os.O_RDWR)
		if err == nil {
			lock.Close()
		}
		if err == nil || errors.Is(err, fs.ErrNotExist) || !errors.Is(err, unix.EWOULDBLOCK) || tasks.Sleep(ctx, followEvery/4) != nil {
			return
		}
	}
}

// logOutput writes records with the caller's options. It remembers the writer's
// error, to distinguish a caller that stops reading from a log that cannot be read.
type logOutput struct {
	w     io.Writer
	times bool
	begin bool // of a line
	err   error
}

func (o *logOutput) write(e entry) error {
	text := e.text
	if o.times && o.begin {
		text = e.at + " " + text
	}
	o.begin = strings.HasSuffix(e.text, "\n")
	_, o.err = io.WriteString(o.w, text)
	return o.err
}
