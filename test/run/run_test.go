package run

import (
	"bufio"
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/creack/pty"

	"holdfast/internal/hosts/spinup"
	"holdfast/test/lab/labtest"
	"holdfast/test/poll"
)

const image = labtest.Busybox

// The output on stdout and stderr, and the exit code.
func TestOutputAndExitCodes(t *testing.T) {
	p := newPlace(t)
	p.write("bad.yaml", "images:\n  - image: busybox\n    imgae: x\nsteps: [{run: x}]\n")
	p.write("sub.sh", "echo from the host")
	for _, c := range []struct {
		name  string
		args  string
		stdin string
		code  int
		out   string
		errs  []string // on stderr
	}{
		{name: "output", args: "run " + image + " -- echo hello", out: "hello\n",
			errs: []string{image + ": image was in the cache\n", "primary: time to create container: ", "primary: time to start container: ", "CONTAINER  IMAGE", "cached"}},
		{name: "without dashes", args: "run " + image + " echo -n hello", out: "hello"},
		{name: "input", args: "run " + image + " -- cat", stdin: "typed", out: "typed"},
		{name: "no input", args: "run -i=false " + image + " -- cat", stdin: "typed"},
		{name: "exit code", args: "run " + image + " -- false", code: 1, errs: []string{"step failed with exit code 1"}},
		{name: "not found", args: "run " + image + " -- no-such-program", code: 127},
		{name: "no image", args: "run 127.0.0.1:1/no/such -- true", code: 125, errs: []string{"error: primary: ", "\nhint: "}},
		{name: "no service", args: "run --service 127.0.0.1:1/no/such:1 " + image + " -- true", code: 125, errs: []string{"error: such: ", "\nhint: "}},
		{name: "never pulled", args: "run --pull never no-such-image -- true", code: 125, errs: []string{"no such image", "\nhint: "}},
		{name: "no command", args: "run " + image, code: 2, errs: []string{"needs an image and a command", "\nhint: "}},
		{name: "bad file", args: "run -f bad.yaml", code: 2, errs: []string{"error: bad.yaml: line 3, column 5: unknown field", "\nhint: "}},
		{name: "no file", args: "run -f none.yaml", code: 2, errs: []string{"none.yaml", "\nhint: "}},
		{name: "file and image", args: "run -f bad.yaml " + image, code: 2},
		{name: "file and flags", args: "run -f bad.yaml -e A=b", code: 2, errs: []string{"--env does not go with a job file"}},
		{name: "parallelism", args: "run -n 0 " + image + " -- true", code: 2, errs: []string{"parallelism: "}},
		{name: "mount", args: "run --mount /a " + image + " -- true", code: 2, errs: []string{"--mount: ", "\nhint: "}},
		{name: "same name", args: "run --service a=" + image + " --service a=" + image + " " + image + " -- true", code: 2, errs: []string{`"a" is used twice`, "\nhint: "}},
		{name: "pull", args: "run --pull maybe " + image + " -- true", code: 2, errs: []string{"not one of missing, always, never"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := p.holdfast(c.stdin, strings.Fields(c.args)...)
			if d.code != c.code || d.out != c.out {
				t.Errorf("exit code %d, output %q\n%s", d.code, d.out, d.errs)
			}
			for _, want := range c.errs {
				if !strings.Contains(d.errs, want) {
					t.Errorf("no %q in\n%s", want, d.errs)
				}
			}
		})
	}
	d := p.holdfast("", "run", "-e", "A=b", "-e", "X=y=z", "-e", "PATH", "--workdir", "/etc", "--mount", ".:/here:ro", image, "--",
		"/bin/sh", "-c", `echo $A $X $(/bin/pwd) $(/bin/cat /here/sub.sh); /bin/echo "$PATH"`)
	if want := "b y=z /etc echo from the host\n" + os.Getenv("PATH") + "\n"; d.code != 0 || d.out != want {
		t.Errorf("%+v, want %q", d, want)
	}
	if d := p.holdfast("images: [{image: \""+image+"\"}]\nsteps: [{run: echo from a pipe}]\n", "run", "-f", "-"); d.code != 0 || d.out != "from a pipe\n" {
		t.Errorf("%+v", d)
	}
}

// With --json, stdout is one object, and the output of the steps is on stderr. The store has all
// records of the object.
func TestJSONAndRecords(t *testing.T) {
	p := newPlace(t)
	d := p.holdfast("", "run", "--json", "-n", "2", "--service", "side="+image, image, "--", "sh", "-c", "echo out; exit 4")
	var got struct {
		Job      string
		ExitCode int `json:"exit_code"`
		Runs     []struct {
			Index, ExitCode int
			Steps           []struct {
				Name string
				Took float64 `json:"took_ms"`
			}
		}
		Spinups []struct {
			spinup.Record
			Run   int
			Alias string
			Slow  []string
		}
	}
	if err := json.Unmarshal([]byte(d.out), &got); err != nil || d.code != 4 {
		t.Fatalf("%v: %+v", err, d)
	}
	if got.ExitCode != 4 || len(got.Runs) != 2 || len(got.Runs[1].Steps) != 1 || got.Runs[1].Steps[0].Took <= 0 || len(got.Spinups) != 4 ||
		got.Spinups[3].Run != 1 || got.Spinups[3].Alias != "side" || got.Spinups[3].Slow == nil || got.Spinups[3].Outcome != spinup.OK {
		t.Errorf("%+v", got)
	}
	if lines := slices.Sorted(strings.Lines(d.errs)); !slices.Equal(lines, []string{"0 | out\n", "1 | out\n"}) {
		t.Errorf("%q", d.errs)
	}
	records := p.records()
	if len(records) != 4 {
		t.Fatalf("%d records", len(records))
	}
	for _, r := range records {
		if r.Job != got.Job || r.Kind != spinup.ForRun || r.Cohort.Host != "place" || r.Cohort.Engine == "" {
			t.Errorf("%+v", r)
		}
	}
}

// For a job that could not run, the object has the command's exit code and the reason.
func TestJSONOfNoJob(t *testing.T) {
	p := newPlace(t)
	for _, s := range []string{"127.0.0.1:1/no/such", "--service=such=127.0.0.1:1/no/such " + image} {
		d := p.holdfast("", append(append([]string{"run", "--json"}, strings.Fields(s)...), "--", "true")...)
		var none struct {
			ExitCode int `json:"exit_code"`
			Error    string
		}
		if err := json.Unmarshal([]byte(d.out), &none); err != nil || d.code != 125 || none.ExitCode != d.code ||
			none.Error == "" || !strings.Contains(d.errs, "error: "+none.Error+"\n") {
			t.Errorf("%s: %v: %+v", s, err, d)
		}
	}
}

// The example of the guide works as documented.
func TestWorkedExample(t *testing.T) {
	page, err := os.ReadFile("../../docs/jobs.md")
	if err != nil {
		t.Fatal(err)
	}
	example := regexp.MustCompile("(?s)```yaml\n(.*?)```").FindSubmatch(page)
	says := regexp.MustCompile("(?s)```\n\\$ holdfast run -f job.yaml\n(.*?)```").FindSubmatch(page)
	if example == nil || says == nil {
		t.Fatal("the page has no example")
	}
	p := newPlace(t)
	p.write("job.yaml", string(example[1]))
	d := p.holdfast("", "run", "-f", "job.yaml")
	got, want := slices.Sorted(strings.Lines(d.out)), slices.Sorted(strings.Lines(string(says[1])))
	if d.code != 0 || !slices.Equal(got, want) {
		t.Errorf("exit code %d, output %q, the page says %q\n%s", d.code, got, want, d.errs)
	}
}

// begin starts a job with a service, and returns when its step runs.
func (p *place) begin() (*exec.Cmd, *bytes.Buffer) {
	p.t.Helper()
	cmd := p.command("run", "--service", "side="+image, image, "--", "sh", "-c", "echo begun; sleep inf")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	var errs bytes.Buffer
	cmd.Stderr = &errs
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(func() { _ = cmd.Process.Kill() })
	if line, err := bufio.NewReader(out).ReadString('\n'); line != "begun\n" {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		p.t.Fatalf("%q, %v\n%s", line, err, &errs)
	}
	return cmd, &errs
}

func (p *place) signal(cmd *exec.Cmd, sig syscall.Signal) {
	p.t.Helper()
	if err := syscall.Kill(-cmd.Process.Pid, sig); err != nil { // as a terminal does
		p.t.Fatal(err)
	}
}

// Ctrl-C removes everything. The exit code is that of an interrupted command.
func TestInterrupted(t *testing.T) {
	p := newPlace(t)
	cmd, errs := p.begin()
	p.signal(cmd, syscall.SIGINT)
	_ = cmd.Wait() // the test checks the exit code
	if code := cmd.ProcessState.ExitCode(); code != 130 || !strings.Contains(errs.String(), "error: interrupted") {
		t.Errorf("exit code %d\n%s", code, errs)
	}
	p.mustBeEmpty()
	if n := len(p.records()); n != 2 {
		t.Errorf("%d records", n)
	}
}

// After a SIGKILL the watcher removes everything.
func TestKilled(t *testing.T) {
	p := newPlace(t)
	cmd, _ := p.begin()
	p.signal(cmd, syscall.SIGKILL)
	_ = cmd.Wait() // killed
	poll.Until(p.t, "nothing is left", func() bool { c, n := p.left(); return len(c)+len(n) == 0 })
}

// A second Ctrl-C ends the command at once, here while the engine does not answer. The watcher
// cleans up later.
func TestInterruptedTwice(t *testing.T) {
	p := newPlace(t)
	cmd, _ := p.begin()
	daemon := labtest.Engine(t).Pid()
	if err := syscall.Kill(daemon, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		_ = cmd.Wait() // the test checks its state
		close(ended)
	}()
	poll.Until(p.t, "it has ended", func() bool {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGINT) // the kernel merges equal pending signals
		select {
		case <-ended:
			return true
		case <-time.After(200 * time.Millisecond):
			return false
		}
	})
	if err := syscall.Kill(daemon, syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	if status, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); !ok || status.Signal() != syscall.SIGINT {
		t.Errorf("it ended with %v", cmd.ProcessState)
	}
	poll.Until(p.t, "nothing is left", func() bool { c, n := p.left(); return len(c)+len(n) == 0 })
}

// With its watcher killed, too, the next run cleans up.
func TestNextRunSweeps(t *testing.T) {
	p := newPlace(t)
	cmd, _ := p.begin()
	watchers := children(t, cmd.Process.Pid)
	if len(watchers) != 1 {
		t.Fatalf("children %v, want the watcher", watchers)
	}
	if err := syscall.Kill(watchers[0], syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	p.signal(cmd, syscall.SIGKILL)
	_ = cmd.Wait() // killed
	if c, n := p.left(); len(c) != 2 || len(n) != 1 {
		t.Fatalf("left are %+v %+v", c, n)
	}
	d := p.holdfast("", "run", image, "--", "true")
	if d.code != 0 || !strings.Contains(d.errs, "1 killed job") {
		t.Errorf("%+v", d)
	}
	p.mustBeEmpty()
}

// A step has the terminal of the command: its size, its echo, and Ctrl-C as a key.
func TestTerminal(t *testing.T) {
	p := newPlace(t)
	ours, theirs, err := pty.Open()
	if err != nil {
		t.Fatal(err)
	}
	defer ours.Close()
	if err := pty.Setsize(ours, &pty.Winsize{Rows: 33, Cols: 77}); err != nil {
		t.Fatal(err)
	}
	cmd := p.command("run", image, "--", "sh", "-c", "trap 'echo caught; exit 9' INT; tty; while sleep 0.1; do stty size; done")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = theirs, theirs, theirs
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	theirs.Close()
	limit := time.AfterFunc(patience, func() { _ = cmd.Process.Kill() })
	defer limit.Stop()
	var all bytes.Buffer
	in, sent := bufio.NewReader(ours), false
	for {
		line, err := in.ReadString('\n')
		all.WriteString(line)
		if strings.Contains(line, "33 77") && !sent {
			sent = true
			if _, err := ours.WriteString("\x03"); err != nil {
				t.Fatal(err)
			}
		}
		if err != nil { // the other end is closed: EIO
			break
		}
	}
	_ = cmd.Wait() // the test checks the exit code
	if code := cmd.ProcessState.ExitCode(); code != 9 || !strings.Contains(all.String(), "/dev/pts/") || !strings.Contains(all.String(), "caught") {
		t.Errorf("exit code %d\n%s", code, &all)
	}
}

func (p *place) records() []spinup.Record {
	p.t.Helper()
	files, err := filepath.Glob(filepath.Join(p.dir, "data", "*.db"))
	if err != nil || len(files) != 1 {
		p.t.Fatalf("%q, %v", files, err)
	}
	s, err := spinup.OpenStore(files[0], spinup.DefaultKeep(), quiet())
	if err != nil {
		p.t.Fatal(err)
	}
	defer s.Close()
	list, err := s.List(spinup.Filter{})
	if err != nil {
		p.t.Fatal(err)
	}
	return list
}
