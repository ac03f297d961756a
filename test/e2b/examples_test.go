package e2b

import (
	"context"
	"errors"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"

	"holdfast/test/lab/labtest"
	"holdfast/test/poll"
)

// The programs of examples run.
func TestExamples(t *testing.T) {
	labtest.NeedLong(t, "it starts an agent; TestExampleOfThePage and the tests of package client make the same calls")
	n := startWith(t, "{type: bind, source: /usr, target: /usr, read_only: true}")
	t.Run("notebook", n.notebook)
	t.Run("terminal", n.terminal)
}

// The notebook runs its cells in one interpreter, and continues it.
func (n *node) notebook(t *testing.T) {
	page, err := os.ReadFile("../../examples/notebook/README.md")
	if err != nil {
		t.Fatal(err)
	}
	got := n.program("PYTHONPATH="+pythonSDKs()[0].need(t), "python3", "../../examples/notebook/notebook.py")
	if want := fenced(t, string(page), "```text\n"); got != want {
		t.Errorf("the example prints\n%s\nwant\n%s", got, want)
	}
}

// The terminal is a shell with a size, which may change.
func (n *node) terminal(t *testing.T) {
	program := filepath.Join(t.TempDir(), "terminal")
	if err := labtest.Build(t.Context(), "holdfast/examples/terminal", program); err != nil {
		t.Fatal(err)
	}
	at := labtest.FreePort(t)
	cmd := exec.CommandContext(t.Context(), program, "-listen", at, "-socket", filepath.Join(n.dir, "s"), "-page", "../../demo/assets")
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = cmd.Process.Signal(os.Interrupt) // it may have ended
		if err := cmd.Wait(); err != nil {
			t.Error(err)
		}
	}()
	var page string
	poll.Until(t, "the page is served", func() bool {
		res, err := http.Get("http://" + at + "/alice/")
		if err != nil {
			return false
		}
		defer res.Body.Close()
		b, err := io.ReadAll(res.Body)
		page = string(b)
		return err == nil
	})
	if !strings.Contains(page, "<script") {
		t.Errorf("the page is %q", page)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if _, _, err := websocket.Dial(ctx, "ws://"+at+"/alice/ws", &websocket.DialOptions{HTTPHeader: http.Header{"Origin": {"http://evil.example"}}}); err == nil {
		t.Error("another site's page has a terminal")
	}
	c, _, err := websocket.Dial(ctx, "ws://"+at+"/alice/ws?rows=30&cols=90", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer c.CloseNow()
	seen := ""
	ask := func(line, want string) {
		t.Helper()
		if err := c.Write(ctx, websocket.MessageBinary, []byte(line+"\n")); err != nil {
			t.Fatal(err)
		}
		for seen = ""; !strings.Contains(seen, want); {
			_, b, err := c.Read(ctx)
			if err != nil {
				t.Fatalf("after %q: %v", seen, err)
			}
			seen += string(b)
		}
	}
	until := func(size string) {
		t.Helper() // the engine sets it a moment later
		ask("until stty size 2>/dev/null | grep -x '"+size+"'; do sleep 0.1; done", "\n"+size)
	}
	until("30 90")
	if err := c.Write(ctx, websocket.MessageText, []byte(`{"rows":40,"cols":100}`)); err != nil {
		t.Fatal(err)
	}
	until("40 100")
	ask("echo $((6*7)) of $HOLDFAST_SESSION", "42 of alice")
	if err := c.Write(ctx, websocket.MessageBinary, []byte("exit 3\n")); err != nil {
		t.Fatal(err)
	}
	for err == nil {
		_, _, err = c.Read(ctx)
	}
	if end, ok := errors.AsType[websocket.CloseError](err); !ok || end.Code != websocket.StatusNormalClosure || !strings.Contains(end.Reason, "exit code 3") {
		t.Errorf("the end: %v", err)
	}
}
