package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
)

// patience limits every wait, so that a failing test does not hang.
const patience = 30 * time.Second

// TestMain turns the test binary into the server if the environment says so: the server
// waits for all children of its process, so it needs its own process.
func TestMain(m *testing.M) {
	if os.Getenv("HOLDFAST_DEMO_TEST_SERVER") != "" {
		main()
		return
	}
	goleak.VerifyTestMain(m)
}

// demo is a running server.
type demo struct {
	addr string
	cmd  *exec.Cmd
}

// serving starts a server for session alice at epoch 17, and ends it when the test ends.
func serving(t *testing.T) *demo {
	t.Helper()
	d := &demo{cmd: exec.Command(os.Args[0], "-addr", "127.0.0.1:0")}
	d.cmd.Env = append(os.Environ(), "HOLDFAST_DEMO_TEST_SERVER=1",
		"HOLDFAST_SESSION=alice", "HOLDFAST_EPOCH=17", "ENV=", "HOME="+t.TempDir())
	log, err := d.cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := d.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	read := make(chan struct{})
	t.Cleanup(func() {
		_ = d.cmd.Process.Kill() // an error means that the test has already ended it
		<-read
		_ = d.cmd.Wait()
	})
	ready := make(chan string, 1)
	go func() {
		defer close(read)
		for lines := bufio.NewScanner(log); lines.Scan(); {
			if m := regexp.MustCompile(`msg=ready addr=(\S+)`).FindStringSubmatch(lines.Text()); m != nil {
				ready <- m[1]
			}
		}
	}()
	select {
	case d.addr = <-ready:
	case <-read:
		t.Fatal("the server ended before it was ready")
	case <-time.After(patience):
		t.Fatal("the server is not ready")
	}
	return d
}

// children returns the pids of the server's children, also of zombies.
func (d *demo) children(t *testing.T) []int {
	t.Helper()
	stats, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		t.Fatal(err)
	}
	var pids []int
	for _, s := range stats {
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(s)))
		if err != nil {
			t.Fatal(err)
		}
		if parent(pid) == d.cmd.Process.Pid {
			pids = append(pids, pid)
		}
	}
	return pids
}

// parent returns a process's parent, 0 if there is no such process (proc(5)).
func parent(pid int) int {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0
	}
	after := strings.Fields(string(b[strings.LastIndexByte(string(b), ')')+1:]))
	n, _ := strconv.Atoi(after[1])
	return n
}

// client is a browser's terminal without a screen.
type client struct {
	conn   *websocket.Conn
	out    string // output that see has not consumed
	people int    // from the last status
	last   status
}

func (d *demo) dial(t *testing.T, query string) *client {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	c, _, err := websocket.Dial(ctx, "ws://"+d.addr+"/ws?"+query, nil)
	if err != nil {
		t.Fatalf("dial: %v", err)
	}
	c.SetReadLimit(1 << 20)
	t.Cleanup(func() { _ = c.CloseNow() }) // an error means that it is closed
	return &client{conn: c}
}

// say types a line.
func (c *client) say(t *testing.T, line string) { t.Helper(); c.send(t, []byte(line+"\r")) }

func (c *client) send(t *testing.T, b []byte) {
	t.Helper()
	c.write(t, websocket.MessageBinary, b)
}

func (c *client) write(t *testing.T, kind websocket.MessageType, b []byte) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := c.conn.Write(ctx, kind, b); err != nil {
		t.Fatalf("write: %v", err)
	}
}

// next reads one message into the client.
func (c *client) next() error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	kind, b, err := c.conn.Read(ctx)
	if err != nil {
		return err
	}
	if kind == websocket.MessageBinary {
		c.out += string(b)
		return nil
	}
	if err := json.Unmarshal(b, &c.last); err != nil {
		return err
	}
	c.people = c.last.People
	return nil
}

// see reads until the output matches, and returns the pattern's first group. It discards
// the output up to the end of the match.
func (c *client) see(t *testing.T, pattern string) string {
	t.Helper()
	re := regexp.MustCompile(pattern)
	for {
		if m := re.FindStringSubmatchIndex(c.out); m != nil {
			found := c.out[m[len(m)-2]:m[len(m)-1]]
			c.out = c.out[m[1]:]
			return found
		}
		if err := c.next(); err != nil {
			t.Fatalf("no %q in %q: %v", pattern, c.out, err)
		}
	}
}

// crowd reads until the status counts n people.
func (c *client) crowd(t *testing.T, n int) {
	t.Helper()
	for c.people != n {
		if err := c.next(); err != nil {
			t.Fatalf("%d people, want %d: %v", c.people, n, err)
		}
	}
}

// ended reads until the server closes, and returns the close code.
func (c *client) ended(t *testing.T) websocket.StatusCode {
	t.Helper()
	for {
		if err := c.next(); err != nil {
			return websocket.CloseStatus(err)
		}
	}
}

// shell returns the pid of the client's shell.
func (c *client) shell(t *testing.T) int {
	t.Helper()
	c.say(t, "echo pid=$$.")
	pid, err := strconv.Atoi(c.see(t, `pid=(\d+)\.`))
	if err != nil {
		t.Fatal(err)
	}
	return pid
}

func gone(pid int) bool { return unix.Kill(pid, 0) == unix.ESRCH }
