package pull

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/creack/pty"

	"holdfast/internal/hosts/spinup"
	"holdfast/test/lab"
	"holdfast/test/lab/labtest"
	"holdfast/test/lab/registry"
	"holdfast/test/poll"
	"holdfast/test/spinup/scene"
)

// output is the output of a command so far.
type output struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (o *output) Write(b []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.buf.Write(b)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.buf.String()
}

// held pushes an image. The proxy holds the end of the image back until release is closed.
func held(t *testing.T, s *scene.Stage, name string, seed uint64) (image string, release func()) {
	t.Helper()
	push(t, s, name, scene.Layers(seed, 4<<20, 1<<20))
	stop := make(chan struct{})
	s.Proxy.Set(registry.Faults{Hold: stop, HoldAfter: 900_000})
	return s.Proxy.Host() + "/" + name, sync.OnceFunc(func() { close(stop) })
}

func interruptedIsNoSuccess(t *testing.T, s *scene.Stage) {
	image, release := held(t, s, "test/interrupted:1", 500)
	defer release()
	u := newUser(t, s.Private.Host())
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	var out, errs output
	cmd := u.command(ctx, "pull", image)
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	poll.Until(t, "the pull has begun", func() bool { return strings.Contains(errs.String(), "pulling…") })
	poll.Until(t, "the proxy has a layer", func() bool { return downloading(t, s) })
	if err := cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait() // by its exit code
	if code := cmd.ProcessState.ExitCode(); code != 130 || !strings.HasSuffix(errs.String(), "error: interrupted\n") || out.String() != "" {
		t.Errorf("exit code %d: %q, %q", code, out.String(), errs.String())
	}
	u.failed(spinup.Stopped, spinup.Canceled)
}

// downloading reports whether the engine has files of unfinished downloads.
func downloading(t *testing.T, s *scene.Stage) bool {
	t.Helper()
	files, err := os.ReadDir(s.Private.DataRoot() + "/tmp")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		if info, err := f.Info(); err == nil && strings.HasPrefix(f.Name(), "GetImageBlob") && info.Size() > 500_000 {
			return true
		}
	}
	return false
}

// throttledIsSlow applies the documented rule to connections of 15 and 25 MiB/s.
func throttledIsSlow(t *testing.T, s *scene.Stage) {
	labtest.NeedLong(t, "test/spinup TestAgainstARegistry judges pulls over the same links")
	rules := spinup.DefaultRules()
	for i, l := range scene.Links() {
		name := fmt.Sprintf("test/throttled-%d:1", i)
		sizes := push(t, s, name, scene.Layers(uint64(600+10*i), l.Third, l.Third, l.Third))
		s.Proxy.Passed()
		s.Proxy.Set(registry.Faults{Rate: l.Rate * (1 << 20)})
		u := newUser(t, s.Private.Host())
		e := u.must("pull", s.Proxy.Host()+"/"+name)
		kept := u.records()[0]
		l.Check(t, rules.Judge(kept), s.Proxy.Passed(), sizes)
		slow := slices.Contains(rules.Slow(kept), spinup.Download)
		if got := strings.Contains(e.out, "[slow download: "); got != slow {
			t.Errorf("said to be slow: %v, kept as slow: %v: %s", got, slow, e.out)
		}
	}
}

// onATerminal checks that each layer is shown, that the output follows the terminal's size,
// and that the progress is erased before the result.
func onATerminal(t *testing.T, s *scene.Stage) {
	image, release := held(t, s, "test/terminal:1", 700)
	defer release()
	u := newUser(t, s.Private.Host())
	ours, theirs, err := pty.Open()
	if err != nil {
		t.Fatal(err)
	}
	defer ours.Close()
	if err := pty.Setsize(ours, &pty.Winsize{Rows: 24, Cols: 120}); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	cmd := u.command(ctx, "pull", image)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = theirs, theirs, theirs
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	theirs.Close()
	var seen output
	read := make(chan struct{})
	go func() {
		defer close(read)
		b := make([]byte, 4096)
		for {
			n, err := ours.Read(b)
			_, _ = seen.Write(b[:n])
			if err != nil {
				return // EIO: the command has ended
			}
		}
	}()
	defer func() {
		if text := seen.String(); t.Failed() {
			t.Logf("the terminal showed %q", text[max(0, len(text)-2000):])
		}
	}()
	poll.Until(t, "layers are shown", func() bool { return strings.Contains(seen.String(), "downloading  [") })
	if err := pty.Setsize(ours, &pty.Winsize{Rows: 2, Cols: 70}); err != nil {
		t.Fatal(err)
	}
	poll.Until(t, "the picture fits", func() bool {
		return strings.Contains(seen.String(), "(+2 layers)") || strings.Contains(seen.String(), "(+1")
	})
	if err := pty.Setsize(ours, &pty.Winsize{Rows: 24, Cols: 120}); err != nil {
		t.Fatal(err)
	}
	release()
	_ = cmd.Wait() // by its exit code
	<-read
	text := seen.String()
	i := strings.LastIndex(text, "\x1b[J")
	if code := cmd.ProcessState.ExitCode(); code != 0 || i < 0 || !strings.HasPrefix(text[i:], "\x1b[JDigest: sha256:") || !strings.Contains(text[i:], "\npull stats: download ") && !strings.Contains(text[i:], "\r\npull stats: download ") {
		t.Errorf("exit code %d, and it ends in %q", code, text[max(0, len(text)-500):])
	}
}

// The daemon is killed in the middle of a pull.
func TestEngineThatDies(t *testing.T) {
	s := open(t, lab.Options{})
	image, release := held(t, s, "test/dies:1", 800)
	defer release()
	u := newUser(t, s.Private.Host())
	var out, errs output
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	cmd := u.command(ctx, "pull", image)
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	poll.Until(t, "the engine has a part of a layer", func() bool { return downloading(t, s) })
	if err := s.Private.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait() // by its exit code
	u.clear(ended{cmd.ProcessState.ExitCode(), out.String(), errs.String()}, 4, "(at layer ")
	u.failed(spinup.Failed, spinup.EngineDown)
}
