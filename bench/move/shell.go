package move

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"strconv"
	"sync"
	"time"

	"github.com/coder/websocket"
)

// fillEnv is the environment variable with the MiB that the server fills.
const fillEnv = "BENCH_MOVE_MIB"

// replayed is the number of earlier lines that the server sends on a new connection.
// Lines on their way to the previous connection may be lost.
const replayed = 50

// keptLines is the number of lines that the server remembers.
const keptLines = 1000

// Shell is the role RoleShell: the server of a session. All its connections share one
// shell.
//
//	/ws       each message is a line of the shell's output, or of its input
//	/sum      204 if the memory that fillEnv asks for is unchanged, otherwise 500
//	/healthz  204
//
// It serves until ctx is done.
func Shell(ctx context.Context, _ []string) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	fill, sum, err := filled(os.Getenv(fillEnv))
	if err != nil {
		return err
	}
	s, err := startShell(ctx)
	if err != nil {
		return err
	}
	mux := http.NewServeMux()
	mux.HandleFunc("/ws", func(w http.ResponseWriter, r *http.Request) { s.serve(ctx, w, r) })
	mux.HandleFunc("/healthz", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) })
	mux.HandleFunc("/sum", func(w http.ResponseWriter, _ *http.Request) {
		if crc32.ChecksumIEEE(fill) != sum {
			http.Error(w, "the memory is not what it was", http.StatusInternalServerError)
			return
		}
		w.WriteHeader(http.StatusNoContent)
	})
	srv := &http.Server{Addr: fmt.Sprintf(":%d", shellPort), Handler: mux, ReadHeaderTimeout: 10 * time.Second}
	stop := context.AfterFunc(ctx, func() { srv.Close() })
	defer stop()
	if err := srv.ListenAndServe(); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// filled returns memory of that many MiB that does not compress.
func filled(mib string) ([]byte, uint32, error) {
	n, err := strconv.Atoi(mib)
	if err != nil || n < 0 {
		return nil, 0, fmt.Errorf("%s: %q is no number of MiB", fillEnv, mib)
	}
	b := make([]byte, n<<20)
	if _, err := rand.NewChaCha8([32]byte{1}).Read(b); err != nil {
		return nil, 0, err
	}
	return b, crc32.ChecksumIEEE(b), nil
}

// shell is a running shell and its output.
type shell struct {
	in io.Writer

	mu    sync.Mutex
	first int // number of lines[0]
	lines []string
	more  chan struct{} // closed when a line arrives
}

func startShell(ctx context.Context) (*shell, error) {
	cmd := exec.CommandContext(ctx, "/bin/sh")
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	cmd.Stderr = cmd.Stdout
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	s := &shell{in: in, more: make(chan struct{}), lines: []string{"ready"}}
	go func() {
		for lines := bufio.NewScanner(out); lines.Scan(); {
			s.add(lines.Text())
		}
	}()
	return s, nil
}

func (s *shell) add(line string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lines = append(s.lines, line)
	if n := len(s.lines) - keptLines; n > 0 {
		s.lines, s.first = append([]string(nil), s.lines[n:]...), s.first+n
	}
	close(s.more)
	s.more = make(chan struct{})
}

// from returns the lines from number n on, the number of the next line, and a channel
// that is closed when another line arrives.
func (s *shell) from(n int) ([]string, int, <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	end := s.first + len(s.lines)
	if n < 0 {
		n = end - replayed
	}
	return append([]string(nil), s.lines[max(n-s.first, 0):]...), end, s.more
}

func (s *shell) serve(ctx context.Context, w http.ResponseWriter, r *http.Request) {
	// Behind a proxy the origin differs from the host of the request.
	c, err := websocket.Accept(w, r, &websocket.AcceptOptions{InsecureSkipVerify: true})
	if err != nil {
		return // Accept has answered
	}
	defer c.CloseNow()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		defer cancel()
		for {
			_, line, err := c.Read(ctx)
			if err != nil {
				return
			}
			if _, err := s.in.Write(append(line, '\n')); err != nil {
				return
			}
		}
	}()
	for n := -1; ; {
		lines, next, more := s.from(n)
		for _, line := range lines {
			if c.Write(ctx, websocket.MessageText, []byte(line)) != nil {
				return
			}
		}
		n = next
		select {
		case <-more:
		case <-ctx.Done():
			return
		}
	}
}
