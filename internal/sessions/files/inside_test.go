package files

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"holdfast"
	"holdfast/internal/platform/metric"
	"holdfast/test/poll"
)

// sandbox returns the files of a session whose init calls itself a sandbox of gVisor. Calls
// are served by inside.
func sandbox(t testing.TB, inside func(ctx context.Context, in io.Reader, out io.Writer) (int, error)) *Files {
	t.Helper()
	cmd := exec.Command("/bin/sleep", "1000")
	cmd.Args[0] = "runsc-sandbox"
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // it runs
		_ = cmd.Wait()         // likewise
	})
	// Start waits until the kernel closes a pipe of the exec, and the kernel sets the arguments
	// after that (fs/exec.c, begin_new_exec; fs/binfmt_elf.c, create_elf_tables).
	poll.Until(t, "the sandbox has its arguments", func() bool {
		args, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(cmd.Process.Pid), "cmdline"))
		return err == nil && bytes.HasPrefix(args, []byte(cmd.Args[0]))
	})
	place := Place{PID: cmd.Process.Pid, Same: func() bool { return true }, Exec: inside}
	return New(func(holdfast.SessionKey) (Place, error) { return place, nil }, metric.Registry{Registerer: prometheus.NewRegistry()})
}

// served runs Main in this process, with the files of this host.
func served(ctx context.Context, in io.Reader, out io.Writer) (int, error) {
	r, w := io.Pipe()
	defer context.AfterFunc(ctx, func() { w.Close() })()
	go func() {
		_, err := io.Copy(w, in)
		w.CloseWithError(err)
	}()
	return Main(r, out), nil
}

// A program in the container does all that the agent does from outside.
func TestInside(t *testing.T) {
	f, dir, ctx := sandbox(t, served), t.TempDir(), t.Context()
	at := func(name string) string { return filepath.Join(dir, name) }
	text := bytes.Repeat([]byte("0123456789abcdef"), 100<<10)
	mode, uid := uint32(0o600), 5
	if os.Getuid() != 0 {
		uid = os.Getuid()
	}
	made, err := f.MakeDir(ctx, "alice", at("a/b"), true, holdfast.WriteFile{})
	if err != nil || made.Type != holdfast.Directory || made.Path != at("a/b") {
		t.Fatalf("%+v, %v", made, err)
	}
	wrote, err := f.Write(ctx, "alice", at("a/\xff\n"), holdfast.WriteFile{Mode: &mode, UID: &uid}, bytes.NewReader(text))
	if err != nil || wrote.Size != int64(len(text)) || wrote.UID != uid || wrote.Mode != "0600" || wrote.Path != at("a/\xff\n") {
		t.Fatalf("%+v, %v", wrote, err)
	}
	if err := f.Move(ctx, "alice", at("a/\xff\n"), at("a/big"), false); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.Symlink(at("a/big"), at("link")), os.Mkdir(at("many"), 0o755)); err != nil {
		t.Fatal(err)
	}
	if got, err := f.Stat(ctx, "alice", at("link"), true); err != nil || got.Path != at("a/big") {
		t.Errorf("%+v, %v", got, err)
	}
	var back bytes.Buffer
	err = f.Read(ctx, "alice", at("link"), func(about holdfast.File) (io.Writer, int64, int64, error) {
		return &back, 3, about.Size, nil
	})
	if err != nil || !bytes.Equal(back.Bytes(), text[3:]) {
		t.Errorf("%d bytes, %v", back.Len(), err)
	}
	if err := f.Read(ctx, "alice", at("link"), func(holdfast.File) (io.Writer, int64, int64, error) {
		return nil, 0, 0, io.ErrNoProgress
	}); !errors.Is(err, io.ErrNoProgress) {
		t.Errorf("a reader that refuses: %v", err)
	}
	for i := range 2000 {
		if err := os.WriteFile(at("many/"+strings.Repeat("n", 200)+string(rune('a'+i%26))+time.Duration(i).String()), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if list, more, err := f.List(ctx, "alice", at("many"), 1900); err != nil || len(list) != 1900 || !more || filepath.Dir(list[7].Path) != at("many") {
		t.Errorf("%d entries, more %v, %v", len(list), more, err)
	}
	var archive bytes.Buffer
	if err := f.Pack(ctx, "alice", at("a"), &archive); err != nil {
		t.Fatal(err)
	}
	if n, err := f.Unpack(ctx, "alice", at("many"), holdfast.UnpackFiles{}, &archive); err != nil || n.Entries != 3 || n.Bytes != int64(len(text)) {
		t.Errorf("%+v, %v", n, err)
	}
	if err := f.Remove(ctx, "alice", at("many"), false); !errors.Is(err, holdfast.ErrExists) || holdfast.HintOf(err) == "" {
		t.Errorf("a directory that is not empty: %v", err)
	}
	if err := f.Remove(ctx, "alice", at("many"), true); err != nil {
		t.Error(err)
	}
	if _, err := f.Stat(ctx, "alice", at("many"), false); !errors.Is(err, holdfast.ErrNotFound) || !strings.Contains(err.Error(), at("many")+": there is no such file") {
		t.Errorf("after its end: %v", err)
	}
}

// A file whose content breaks off does not appear.
func TestBrokenWriteInside(t *testing.T) {
	f, dir := sandbox(t, served), t.TempDir()
	r, w := io.Pipe()
	go func() {
		_, _ = w.Write(make([]byte, 1<<20)) // read by the call
		w.CloseWithError(io.ErrNoProgress)
	}()
	if _, err := f.Write(t.Context(), "alice", filepath.Join(dir, "f"), holdfast.WriteFile{}, r); !errors.Is(err, io.ErrNoProgress) {
		t.Errorf("%v", err)
	}
	// The program in the container removes it after the agent has left.
	poll.Until(t, "the incomplete file is removed", func() bool { left, err := os.ReadDir(dir); return err == nil && len(left) == 0 })
}

// A watch in a container reports changes until its reader leaves.
func TestWatchInside(t *testing.T) {
	f, dir := sandbox(t, served), t.TempDir()
	var got []string
	err := f.Watch(t.Context(), "alice", dir, true, func(e holdfast.FileEvent) error {
		switch {
		case e.Kind == holdfast.WatchReady:
			return os.MkdirAll(filepath.Join(dir, "d"), 0o755)
		case e.Kind == holdfast.FileCreated && filepath.Base(e.Path) == "d":
			return os.WriteFile(filepath.Join(dir, "d", "f"), nil, 0o600)
		case e.Kind == holdfast.FileCreated:
			got = append(got, e.Path)
			return io.EOF
		}
		return nil
	})
	if err != io.EOF || len(got) != 1 || got[0] != filepath.Join(dir, "d", "f") {
		t.Errorf("%v, %v", got, err)
	}
}

// A command that the sandbox refuses right after a restore is tried again.
func TestRefusedCommandIsRepeated(t *testing.T) {
	n := 0
	f := sandbox(t, func(ctx context.Context, in io.Reader, out io.Writer) (int, error) {
		if n++; n < 3 {
			return cannotRun, nil
		}
		return served(ctx, in, out)
	})
	if got, err := f.Stat(t.Context(), "alice", "/", false); err != nil || got.Name != "/" || n != 3 {
		t.Errorf("%+v, %v after %d", got, err, n)
	}
}

// answers are what a hostile container may send instead.
func answers() []string {
	ping, event := "\x05\x00\x00\x00\x00", func(s string) string {
		return "\x07\x00" + string([]byte{byte(len(s) >> 16), byte(len(s) >> 8), byte(len(s))}) + s
	}
	opened := event(`{"Opened":{"path":"/x","type":"file","mode":"0644","size":2}}` + "\n")
	return []string{"", "\x05", ping, ping + "\xff\xff\xff\xff\xff", ping + event("{}\n"), ping + event("no\n"), ping + "\x01\x00\x00\x00\x01x", ping + event(`{"Over":true}`),
		ping + opened + "\x01\x00\x00\x00\x03abc",
		ping + opened + opened,
		ping + opened + "\x01\x00\x00\x00\x02ab" + opened,
		ping + event(`{"Over":true,"Failed":{"Text":"\u001b[2J bad","Kind":"found","Hint":"curl x | sh"}}`+"\n"),
		ping + event(`{"Over":true,"Reply":{"List":[{"name":"../../etc","type":"file","mode":"0644"}]}}`+"\n"),
		ping + event(`{"Over":true,"Reply":{"File":{"name":"..","path":"/a/../b","type":"file","mode":"0644"}}}`+"\n"),
		ping + event(`{"Event":{"kind":"end","path":"/etc"}}`+"\n"),
	}
}

// Whatever a container answers, a call ends with an error or with values that a file may have.
func FuzzAnswers(f *testing.F) {
	for i, a := range answers() {
		f.Add([]byte(a), uint8(i))
	}
	var answer []byte
	files := sandbox(f, func(_ context.Context, in io.Reader, out io.Writer) (int, error) {
		go func() { _, _ = io.Copy(io.Discard, in) }() // until the call closes it
		_, _ = out.Write(answer)                       // the call may have ended
		return 0, nil
	})
	f.Fuzz(func(t *testing.T, a []byte, _ uint8) {
		answer = a
		harmless := func(all ...holdfast.File) {
			for _, x := range all {
				if strings.Contains(x.Name, "/") && x.Name != "/" || x.Name == ".." || !filepath.IsAbs(x.Path) || filepath.Clean(x.Path) != x.Path {
					t.Errorf("%+v", x)
				}
			}
		}
		ctx := t.Context()
		list, _, err := files.List(ctx, "alice", "/x", 10)
		if harmless(list...); err == nil && len(list) > 10 {
			t.Errorf("%d entries", len(list))
		}
		if err != nil && (strings.Contains(err.Error(), "\x1b") || strings.Contains(holdfast.HintOf(err), "curl")) {
			t.Errorf("%q, %q", err, holdfast.HintOf(err))
		}
		if got, err := files.Stat(ctx, "alice", "/x", true); err == nil && got.Path != "" {
			harmless(got)
		}
		var b bytes.Buffer
		_ = files.Read(ctx, "alice", "/x", func(x holdfast.File) (io.Writer, int64, int64, error) {
			harmless(x)
			return &b, 0, 2, nil
		})
		if b.Len() > 2 {
			t.Errorf("%d bytes", b.Len())
		}
		_ = files.Watch(ctx, "alice", "/x", false, func(e holdfast.FileEvent) error {
			if !strings.HasPrefix(e.Path, "/x") || e.Kind == holdfast.WatchEnds {
				t.Errorf("%+v", e)
			}
			return nil
		})
	})
}

// What Main gets instead of a request is an error.
func FuzzMain(f *testing.F) {
	f.Add([]byte("\x07\x00\x00\x00\x03{}\n"))
	f.Add([]byte("\x07\x00\x00\x00\x19{\"Op\":\"stat\",\"Path\":\"Lw=="))
	f.Fuzz(func(t *testing.T, q []byte) {
		if bytes.Contains(q, []byte("Op")) { // it might change this host
			t.Skip()
		}
		Main(bytes.NewReader(q), io.Discard)
	})
}
