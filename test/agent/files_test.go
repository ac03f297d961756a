package agent

import (
	"archive/tar"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"holdfast"
	"holdfast/internal/control/api/client"
	"holdfast/test/lab/labtest"
)

// put writes a file of a session.
func (h *host) put(place, text string, flags ...string) result {
	h.t.Helper()
	return h.input(text, append([]string{"session", "files", "put", place}, flags...)...)
}

// input runs a command with an input.
func (h *host) input(text string, words ...string) result {
	h.t.Helper()
	cmd := exec.Command(holdfastBinary(h.t), words...)
	cmd.Env = append(os.Environ(), "HOLDFAST_SOCKET="+h.socket)
	cmd.Stdin = strings.NewReader(text)
	var out, errs strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &errs
	_ = cmd.Run() // its exit code is in the result
	return result{code: cmd.ProcessState.ExitCode(), out: out.String(), err: errs.String()}
}

// inside runs a shell in a session's container, and returns its output.
func (h *host) inside(key, script string) string {
	h.t.Helper()
	return strings.TrimSpace(h.must("session", "exec", key, "--", "sh", "-c", script))
}

func (h *host) stat(place string) (f holdfast.File) {
	h.t.Helper()
	if err := json.Unmarshal([]byte(h.must("session", "files", "stat", place, "--json")), &f); err != nil {
		h.t.Fatal(err)
	}
	return f
}

// Files of a session are written, read, listed, moved, watched and removed from outside,
// and the container sees them.
func TestFiles(t *testing.T) {
	h := newHost(t, "templates:"+shellTemplate)
	h.start()
	h.must("session", "start", "alice")

	if r := h.put("alice:/tmp/hello", "hello", "--mode", "0750", "--uid", "12", "--gid", "34"); r.code != 0 {
		t.Fatalf("%+v", r)
	}
	if got := h.inside("alice", "cat /tmp/hello; stat -c ' %a %u %g' /tmp/hello"); got != "hello 750 12 34" {
		t.Errorf("%q", got)
	}
	if r := h.put("alice:/tmp/hello", "again"); r.code != 0 { // it keeps mode and owner
		t.Fatalf("%+v", r)
	}
	if f := h.stat("alice:/tmp/hello"); f.Mode != "0750" || f.UID != 12 || f.GID != 34 || f.Size != 5 || f.Type != holdfast.RegularFile {
		t.Errorf("%+v", f)
	}
	if got := h.must("session", "files", "cat", "alice:/tmp/hello", "--offset", "2"); got != "ain" {
		t.Errorf("%q", got)
	}
	h.must("session", "files", "mkdir", "-p", "alice:/srv/a/b")
	h.must("session", "files", "mv", "alice:/tmp/hello", "/srv/a")
	if got := h.inside("alice", "cd /srv; find a | sort | tr '\\n' ' '"); got != "a a/b a/hello" {
		t.Errorf("%q", got)
	}
	if got := h.must("session", "files", "ls", "alice:/srv/a"); !strings.Contains(got, "directory  0755  0    0    ") || !strings.Contains(got, "file       0750  12   34   5") {
		t.Errorf("%s", got)
	}
	if r := h.cli("session", "files", "rm", "alice:/srv/a"); r.code == 0 || !strings.Contains(r.err, "not empty") {
		t.Errorf("%+v", r)
	}
	h.must("session", "files", "rm", "-r", "alice:/srv/a")
	if r := h.cli("session", "files", "stat", "alice:/srv/a"); r.code != 5 || !strings.Contains(r.err, "error: stat /srv/a: there is no such file") {
		t.Errorf("%+v", r)
	}
	// A mount point is overwritten in place.
	if r := h.put("alice:/etc/hosts", "1.2.3.4 example\n"); r.code != 0 {
		t.Errorf("%+v", r)
	}
	if got := h.inside("alice", "cat /etc/hosts"); got != "1.2.3.4 example" {
		t.Errorf("%q", got)
	}
	// A part of a file, over HTTP.
	c := h.client()
	var part strings.Builder
	if err := c.ReadFile(t.Context(), "alice", "/etc/hosts", 8, &part); err != nil || part.String() != "example\n" {
		t.Errorf("%q, %v", part.String(), err)
	}
}

// Copies follow the rules of docker cp.
func TestCopy(t *testing.T) {
	h := newHost(t, "templates:"+shellTemplate)
	h.start()
	h.must("session", "start", "alice")
	dir := t.TempDir()
	at := func(p string) string { return filepath.Join(dir, p) }
	read := func(p string) string {
		b, err := os.ReadFile(at(p))
		if err != nil {
			t.Error(err)
		}
		return string(b)
	}
	if err := os.MkdirAll(at("src/sub"), 0o755); err != nil {
		t.Fatal(err)
	}
	for p, text := range map[string]string{"src/one": "1", "src/sub/two": "2"} {
		if err := os.WriteFile(at(p), []byte(text), 0o640); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("one", at("src/link")); err != nil {
		t.Fatal(err)
	}
	if err := os.Chown(at("src/one"), 7, 8); err != nil {
		t.Fatal(err)
	}
	tree := func(p string) string { return h.inside("alice", "cd "+p+" && find . | sort | tr '\\n' ' '") }

	h.must("session", "cp", at("src"), "alice:/new")  // is made
	h.must("session", "cp", at("src"), "alice:/new/") // exists: gets the directory
	if got := tree("/new"); got != ". ./link ./one ./src ./src/link ./src/one ./src/sub ./src/sub/two ./sub ./sub/two" {
		t.Errorf("%q", got)
	}
	h.must("session", "cp", at("src")+"/.", "alice:/tmp")
	if got := h.inside("alice", "cat /tmp/one /tmp/link; stat -c ' %a %u %g' /tmp/one; readlink /tmp/link"); got != "11 640 0 0\none" {
		t.Errorf("%q", got)
	}
	h.must("session", "cp", "-a", at("src/one"), "alice:/tmp/named")
	if got := h.inside("alice", "stat -c '%u %g' /tmp/named"); got != "7 8" {
		t.Errorf("%q", got)
	}
	for _, bad := range []struct {
		words []string
		code  int
		want  string
	}{
		{[]string{at("src/one"), "alice:/missing/"}, 5, "there is no directory"},
		{[]string{at("src/one"), "alice:/missing/file"}, 5, "there is no such file"},
		{[]string{at("src"), "alice:/tmp/one"}, 1, "is a file"},
		{[]string{at("nothing"), "alice:/tmp"}, 5, "there is no file"},
		{[]string{at("src"), at("dst")}, 2, "one of source and destination"},
		{[]string{"alice:/nothing", at("dst")}, 5, "there is no such file"},
		{[]string{"bob:/etc", at("dst")}, 5, "session bob: not found"},
	} {
		if r := h.cli(append([]string{"session", "cp"}, bad.words...)...); r.code != bad.code || !strings.Contains(r.err, bad.want) {
			t.Errorf("%v: %+v", bad.words, r)
		}
	}

	h.must("session", "cp", "alice:/new", at("back"))
	h.must("session", "cp", "alice:/new/src/.", at("back/src2"))
	h.must("session", "cp", "alice:/new/one", at("back")+"/")
	h.must("session", "cp", "-L", "alice:/new/link", at("back/followed"))
	if got := read("back/src/sub/two") + read("back/src2/one") + read("back/one") + read("back/followed"); got != "2111" {
		t.Errorf("%q", got)
	}
	if to, err := os.Readlink(at("back/link")); to != "one" {
		t.Errorf("%q, %v", to, err)
	}
	archive := h.must("session", "cp", "alice:/new/src", "-")
	if r := h.input(archive, "session", "cp", "-", "alice:/srv"); r.code != 5 {
		t.Errorf("%+v", r) // busybox has no /srv
	}
	h.must("session", "files", "mkdir", "alice:/srv")
	if r := h.input(archive, "session", "cp", "-", "alice:/srv"); r.code != 0 {
		t.Errorf("%+v", r)
	}
	if got := tree("/srv"); got != ". ./src ./src/link ./src/one ./src/sub ./src/sub/two" {
		t.Errorf("%q", got)
	}
	// The whole container: kernel file systems are empty in it.
	names, err := exec.Command("sh", "-c", holdfastBinary(t)+" --socket "+h.socket+" session cp alice:/ - | tar -t").CombinedOutput()
	if err != nil || !strings.Contains(string(names), "\nbin/sh\n") || strings.Contains(string(names), "proc/1/") {
		t.Errorf("%v: %.2000s", err, names)
	}
}

// A hostile container reaches nothing of the host through the agent.
func TestHostileFiles(t *testing.T) {
	h := newHost(t, "templates:"+shellTemplate)
	h.start()
	h.must("session", "start", "alice")
	secret := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(secret, []byte("of the host"), 0o600); err != nil {
		t.Fatal(err)
	}
	up := strings.Repeat("../", 40)
	h.inside("alice", fmt.Sprintf(`mkdir -p /h/real && cd /h
		ln -s %[1]s absolute; ln -s %[2]s%[1]s relative; ln -s /proc/1/root%[1]s magic; ln -s /proc/self/root%[1]s self
		ln -s loop loop; mkfifo fifo; mknod null c 1 3; mknod disk b 8 0; ln -s fifo tofifo; ln -s null tonull`, secret, up))
	for path, want := range map[string]string{
		secret: "no such file", "/h/absolute": "no such file", "/h/relative": "no such file", "/" + up + secret: "no such file",
		"/h/magic": "", "/h/self": "", "/h/loop": "links lead nowhere",
		"/h/fifo": "it is a fifo", "/h/tofifo": "it is a fifo", "/h/null": "it is a device", "/h/tonull": "it is a device", "/h/disk": "it is a device",
		"/proc/version": "file of the kernel", "/proc/1/mem": "file of the kernel", "/sys/kernel/uevent_seqnum": "file of the kernel",
		"/h": "it is a directory", "/h/absolute/x": "no such file",
	} {
		for _, words := range [][]string{{"cat"}, {"put"}} {
			r := h.cli("session", "files", words[0], "alice:"+path)
			if words[0] == "put" && (path == secret || strings.HasPrefix(path, "/../")) {
				continue // a new file of the container
			}
			if r.code == 0 || !strings.Contains(r.err, want) && words[0] == "cat" {
				t.Errorf("%s %s: %+v, want %q", words[0], path, r, want)
			}
		}
	}
	if b, err := os.ReadFile(secret); string(b) != "of the host" {
		t.Fatalf("the host's file has %q, %v", b, err)
	}
	// A link in a directory that an archive is unpacked to leads nowhere.
	outside := filepath.Dir(secret)
	h.inside("alice", "mkdir /in && ln -s "+outside+" /in/out && ln -s /h/real /in/real")
	for name := range map[string]bool{"out/x": true, "real/x": true, "../x": true} {
		if r := h.input(tarOf(t, name, "text"), "session", "cp", "-", "alice:/in"); r.code == 0 || strings.Count(r.err, "\n") > 2 {
			t.Errorf("%s: %+v", name, r)
		}
	}
	// The container swaps a directory and a link while files are written to it.
	id := h.detach("alice", "mkdir -p /s/d; ln -s "+outside+" /s/l; while :; do mv /s/d /s/e; mv /s/l /s/d; mv /s/d /s/l; mv /s/e /s/d; done")
	c := h.client()
	written := 0
	for i := 0; i < labtest.Count(60, 300) || written == 0 && i < 3000; i++ {
		_, err := c.WriteFile(t.Context(), "alice", fmt.Sprintf("/s/d/evil%d", i), holdfast.WriteFile{}, strings.NewReader("x"))
		if err == nil {
			written++
		}
		_, _ = c.UnpackFiles(t.Context(), "alice", "/s/d", holdfast.UnpackFiles{}, strings.NewReader(tarOf(t, "evil/x", "x"))) // as it may
		_ = c.PackFiles(t.Context(), "alice", "/s/d", failOn{t, "of the host"})                                                // likewise
	}
	h.must("session", "signal", "alice", id, "KILL")
	left, err := os.ReadDir(outside)
	if err != nil || len(left) != 1 {
		t.Errorf("the host's directory has %v, %v", left, err)
	}
	if written == 0 {
		t.Error("no file was written")
	}
}

// failOn fails a test if a text is written to it in one piece.
type failOn struct {
	t    *testing.T
	text string
}

func (f failOn) Write(p []byte) (int, error) {
	if strings.Contains(string(p), f.text) {
		f.t.Errorf("%q was read", f.text)
	}
	return len(p), nil
}

// Changes are reported, also those in directories that are made meanwhile.
func TestWatchFiles(t *testing.T) {
	h := newHost(t, "templates:"+shellTemplate)
	h.start()
	h.must("session", "start", "alice")
	h.inside("alice", "mkdir -p /w/old")
	f := h.follow("session", "files", "watch", "-r", "alice:/w", "--json")
	next := func(kind holdfast.FileEventKind, path string) {
		t.Helper()
		for {
			var e holdfast.FileEvent
			if err := json.Unmarshal([]byte(f.line()), &e); err != nil {
				t.Fatal(err)
			}
			if e.Kind == kind && e.Path == path {
				return
			}
		}
	}
	next(holdfast.WatchReady, "/w")
	h.inside("alice", "echo x > /w/old/f; mkdir /w/new; sleep 0.1; echo y > /w/new/g; mv /w/new /w/moved; sleep 0.1; chmod 600 /w/moved/g; rm /w/old/f")
	next(holdfast.FileCreated, "/w/old/f")
	next(holdfast.FileWritten, "/w/old/f")
	next(holdfast.FileCreated, "/w/new")
	next(holdfast.FileRenamed, "/w/new")
	next(holdfast.FileCreated, "/w/moved")
	next(holdfast.FileChanged, "/w/moved/g")
	next(holdfast.FileRemoved, "/w/old/f")
	h.inside("alice", "rm -r /w")
	next(holdfast.WatchedIsGone, "/w")
	if code := f.end(); code != 0 {
		t.Errorf("watch exits with %d", code)
	}
	// A watch ends with its session.
	f = h.follow("session", "files", "watch", "alice:/tmp", "--json")
	next(holdfast.WatchReady, "/tmp")
	h.must("session", "stop", "alice")
	if code := f.end(); code != 5 {
		t.Errorf("watch exits with %d when its session ends", code)
	}
}

// Files of a size that no memory has, and a tree of a depth that no path has.
func TestLargeFiles(t *testing.T) {
	labtest.NeedLong(t, "it copies 1 GiB and makes a million directories")
	h := newHost(t, "templates:"+shellTemplate)
	h.start()
	h.must("session", "start", "alice")
	c := h.client()
	const size = 1 << 30
	if f, err := c.WriteFile(t.Context(), "alice", "/big", holdfast.WriteFile{}, io.LimitReader(zeros{}, size)); err != nil || f.Size != size {
		t.Fatalf("%+v, %v", f, err)
	}
	n := &counter{}
	if err := c.ReadFile(t.Context(), "alice", "/big", 0, n); err != nil || n.n != size {
		t.Fatalf("%d, %v", n.n, err)
	}
	h.must("session", "files", "rm", "alice:/big")
	h.cliFor(10*60e9, "session", "exec", "alice", "--", "sh", "-c", "mkdir /deep && cd /deep && i=0; while [ $i -lt 20000 ]; do mkdir d d/d && cd d/d || exit 1; i=$((i+1)); done")
	if r := h.cli("session", "cp", "alice:/deep", t.TempDir()); r.code == 0 || !strings.Contains(r.err, "deeper than 256") {
		t.Errorf("%+v", r)
	}
	h.must("session", "files", "rm", "-r", "alice:/deep")
	if got := h.inside("alice", "ls /deep 2>&1; :"); !strings.Contains(got, "No such file") {
		t.Errorf("%q", got)
	}
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}

type counter struct{ n int64 }

func (c *counter) Write(p []byte) (int, error) {
	c.n += int64(len(p))
	return len(p), nil
}

// client returns a client of the host's agent.
func (h *host) client() *client.Client {
	h.t.Helper()
	c, err := client.New(client.Options{Socket: h.socket})
	if err != nil {
		h.t.Fatal(err)
	}
	h.t.Cleanup(c.Close)
	return c
}

// tarOf is an archive with one file.
func tarOf(t *testing.T, name, text string) string {
	t.Helper()
	var b strings.Builder
	w := tar.NewWriter(&b)
	err := w.WriteHeader(&tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: 0o644, Size: int64(len(text))})
	if err == nil {
		_, err = w.Write([]byte(text))
	}
	if err := errors.Join(err, w.Close()); err != nil {
		t.Fatal(err)
	}
	return b.String()
}
