package containerd

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"holdfast/internal/platform/linux/flock"
	"holdfast/internal/platform/tasks"
)

// A container writes to two named pipes (fifo(7)) in its directory, which its shim
// holds open. One process at a time copies them to the log: the process that started
// the container and, when it ends, the next one that gets the lock. In between the
// output waits in the pipes. A container that writes more than their capacity (64
// KiB) blocks.
const (
	stdout = "stdout"
	stderr = "stderr"

	lockFile = "log.lock"
)

// lockPatience is how long a start waits for the reader of the container's last
// run.
const lockPatience = 5 * time.Second

// maxLogLine is the longest piece of a line in one record.
const maxLogLine = 16 << 10

// pumps are the readers of this Engine.
type pumps struct {
	mu     sync.Mutex
	byID   map[string]*pump
	closed bool
	all    sync.WaitGroup
}

func newPumps() *pumps { return &pumps{byID: map[string]*pump{}} }

// pump reads one container's output into its log.
type pump struct {
	of    *pumps
	id    string
	dir   string
	lock  *os.File
	pipes map[string]*os.File
	log   *logWriter
	ended chan struct{} // closed when files and lock are released
}

// errBusy means that another process reads the container's output.
var errBusy = errors.New("another process reads its output")

// open makes and opens the pipes of a container that is not started yet. run begins
// to read.
func (ps *pumps) open(ctx context.Context, id, dir string) (*pump, error) {
	for begin := time.Now(); ; {
		p, err := ps.take(id, dir, true)
		if !errors.Is(err, errBusy) || time.Since(begin) > lockPatience {
			return p, err
		}
		if tasks.Sleep(ctx, 10*time.Millisecond) != nil {
			return nil, ctx.Err()
		}
	}
}

// adopt reads the output of a running container, if no process does.
func (ps *pumps) adopt(id, dir string) error {
	p, err := ps.take(id, dir, false)
	if errors.Is(err, errBusy) || errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil {
		p.run()
	}
	return err
}

// take locks the log and opens the pipes. For a new start it makes them again.
func (ps *pumps) take(id, dir string, fresh bool) (*pump, error) {
	flag := os.O_RDWR
	if fresh {
		flag |= os.O_CREATE
	}
	lock, err := flock.Open(filepath.Join(dir, lockFile), flag)
	if errors.Is(err, unix.EWOULDBLOCK) {
		return nil, errBusy
	}
	if err != nil {
		return nil, fmt.Errorf("lock its log: %w", err)
	}
	p := &pump{of: ps, id: id, dir: dir, lock: lock, pipes: map[string]*os.File{}, ended: make(chan struct{})}
	for _, name := range []string{stdout, stderr} {
		if err = p.openPipe(name, fresh); err != nil {
			break
		}
	}
	if err == nil {
		p.log, err = openLog(dir)
	}
	if err == nil {
		err = ps.add(p)
	}
	if err != nil {
		p.free()
		return nil, fmt.Errorf("read its output: %w", err)
	}
	return p, nil
}

func (p *pump) openPipe(name string, fresh bool) error {
	if fresh {
		if err := os.Remove(p.path(name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		if err := unix.Mkfifo(p.path(name), 0o600); err != nil {
			return err
		}
	}
	// O_NONBLOCK avoids waiting for a writer, and a non-blocking os.File can be
	// closed while it is read.
	f, err := os.OpenFile(p.path(name), os.O_RDONLY|unix.O_NONBLOCK, 0)
	p.pipes[name] = f
	return err
}

func (p *pump) path(name string) string { return filepath.Join(p.dir, name) }

// add registers the pump, unless the Engine is closed.
func (ps *pumps) add(p *pump) error {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	if ps.closed {
		return errors.New("the engine was closed")
	}
	ps.byID[p.id] = p
	ps.all.Add(1)
	return nil
}

// run starts reading and returns. Reading goes on until all writers are gone. The
// shim has opened its ends before run, so EOF is final.
func (p *pump) run() {
	var both sync.WaitGroup
	for name, pipe := range p.pipes {
		both.Go(func() { p.copy(name, pipe) })
	}
	go func() {
		both.Wait()
		p.done()
	}()
}

// abandon releases a pump that never ran.
func (p *pump) abandon() { p.done() }

func (p *pump) done() {
	p.of.mu.Lock()
	if p.of.byID[p.id] == p {
		delete(p.of.byID, p.id)
	}
	p.of.mu.Unlock()
	p.free()
	close(p.ended)
	p.of.all.Done()
}

// free releases everything, the lock last: then the log is complete.
func (p *pump) free() {
	for _, pipe := range p.pipes {
		if pipe != nil {
			pipe.Close()
		}
	}
	if p.log != nil {
		p.log.close()
	}
	p.lock.Close()
}

// copy writes one stream to the log. It drops output that cannot be written, for
// example on a full disk, so that the container does not block.
func (p *pump) copy(stream string, from io.Reader) {
	lines := bufio.NewReaderSize(from, maxLogLine)
	for {
		line, err := lines.ReadSlice('\n')
		if len(line) > 0 {
			p.log.write(time.Now(), stream, line)
		}
		if err != nil && !errors.Is(err, bufio.ErrBufferFull) {
			return
		}
	}
}

// has reports whether this process reads a container's output.
func (ps *pumps) has(id string) bool {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	return ps.byID[id] != nil
}

// drop stops reading a container that is being removed, and returns when the log is
// no longer written.
func (ps *pumps) drop(id string) {
	ps.mu.Lock()
	p := ps.byID[id]
	ps.mu.Unlock()
	if p != nil {
		p.stop()
		<-p.ended
	}
}

// stop ends the reading, like EOF on the streams.
func (p *pump) stop() {
	for _, pipe := range p.pipes {
		pipe.Close()
	}
}

// close stops all pumps and waits for their end.
func (ps *pumps) close() {
	ps.mu.Lock()
	ps.closed = true
	for _, p := range ps.byID {
		p.stop()
	}
	ps.mu.Unlock()
	ps.all.Wait()
}
