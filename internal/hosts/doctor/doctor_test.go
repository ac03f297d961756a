package doctor_test

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"holdfast/internal/hosts/doctor"
	"holdfast/internal/hosts/doctor/fact"
	"holdfast/internal/hosts/doctor/probe"
	"holdfast/internal/hosts/doctor/rule"
	"holdfast/internal/platform/engine"
	"holdfast/internal/platform/linux/proc"
)

// given returns a probe with the given result.
func given(name string, err error, facts ...fact.Fact) probe.Probe {
	p := probe.Probe{Name: name, Sees: "what the test is about"}
	for _, f := range facts {
		p.Gives = append(p.Gives, f.Name)
	}
	p.Open = func(context.Context, probe.Host, time.Time) (probe.Series, error) {
		return series{read: func() ([]fact.Fact, error) {
			if err != nil {
				return nil, err
			}
			return facts, nil
		}}, nil
	}
	return p
}

// series is an open probe that reads with a function.
type series struct {
	read   func() ([]fact.Fact, error)
	closed *int // counts the calls of Close, unless it is nil
}

func (s series) Read(context.Context, time.Time) ([]fact.Fact, error) { return s.read() }

func (s series) Close() error {
	if s.closed != nil {
		*s.closed++
	}
	return nil
}

// oneContainer is an engine with one container.
type oneContainer struct{ id string }

func (o oneContainer) List(context.Context, map[string]string) ([]engine.Container, error) {
	return []engine.Container{{ID: o.id, Name: "web-1", Image: "shop:7"}}, nil
}

func verdict(r doctor.Report, rule string) doctor.Check {
	for _, c := range r.Checked {
		if c.Rule == rule {
			return c
		}
	}
	return doctor.Check{}
}

// The subject of a finding and its cure have the container's name, and a rule without its
// facts reports why it did not judge.
func TestReport(t *testing.T) {
	id := strings.Repeat("ab", 32)
	group := fact.Subject{Cgroup: "/docker/" + id}
	e := doctor.Examination{
		Host: probe.Host{Proc: proc.Host}, For: time.Second, Engine: oneContainer{id},
		Probes: []probe.Probe{
			given("groups", nil, fact.Fact{Name: fact.GroupsSeen, Value: 1},
				fact.Fact{Name: fact.GroupThrottled, Value: 0.9, Subject: group}, fact.Fact{Name: fact.GroupPeriods, Value: 300, Subject: group}),
			given("host", nil, fact.Fact{Name: fact.KernelRelease, Text: "4.4.0"}),
			given("drains", errors.New("it was forbidden"), fact.Fact{Name: fact.Drains}),
		},
	}
	r, err := e.Run(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Findings) != 2 || r.Findings[0].Rule != "throttling" || r.Findings[1].Severity != rule.Notice {
		t.Fatalf("findings, most severe first: %+v", r.Findings)
	}
	if f := r.Findings[0]; f.Subject.Container != "web-1" || f.Subject.Image != "shop:7" || !strings.HasSuffix(f.Cures[0].Command, " web-1") {
		t.Errorf("subject %+v, cure %+v", f.Subject, f.Cures[0])
	}
	if c := verdict(r, "fadvise-storm"); c.Verdict != doctor.NotJudged || !strings.Contains(c.Why, "it was forbidden") {
		t.Errorf("a rule without facts: %+v", c)
	}
	if c := verdict(r, "syscall-storm"); c.Verdict != doctor.NotJudged || c.Why == "" {
		t.Errorf("a rule without a probe for its facts: %+v", c)
	}
	if c := verdict(r, "own-limit"); c.Verdict != doctor.Fine {
		t.Errorf("a rule with facts: %+v", c)
	}
	if len(r.Gaps) != 1 || r.Gaps[0].Probe != "drains" {
		t.Errorf("gaps %+v", r.Gaps)
	}
	b, err := json.Marshal(r)
	if err != nil || !strings.Contains(string(b), `"verdict":"not judged"`) {
		t.Errorf("JSON: %v %s", err, b)
	}
}

// An interrupted examination ends, and every probe that was opened is read and closed.
func TestInterrupted(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	ended, closed := 0, 0
	p := probe.Probe{Name: "p", Open: func(context.Context, probe.Host, time.Time) (probe.Series, error) {
		cancel()
		return series{closed: &closed, read: func() ([]fact.Fact, error) {
			ended++
			return nil, nil
		}}, nil
	}}
	_, err := doctor.Examination{For: doctor.MaxFor, Probes: []probe.Probe{p}}.Run(ctx)
	if !errors.Is(err, context.Canceled) || ended != 1 || closed != 1 {
		t.Errorf("error %v, %d probes read and %d closed, want 1 each", err, ended, closed)
	}
}

func TestDuration(t *testing.T) {
	for _, d := range []time.Duration{0, -time.Second, time.Millisecond, time.Hour} {
		if _, err := (doctor.Examination{For: d}).Run(t.Context()); err == nil {
			t.Errorf("For %v is accepted", d)
		}
	}
}

// An invalid container name is not put into a command.
func TestNameInCommand(t *testing.T) {
	id := strings.Repeat("cd", 32)
	r, err := doctor.Examination{
		For: time.Second, Engine: named{id, "x; reboot"}, Host: probe.Host{Proc: proc.Host},
		Probes: []probe.Probe{given("groups", nil, fact.Fact{Name: fact.GroupsSeen, Value: 1},
			fact.Fact{Name: fact.GroupThrottled, Value: 0.9, Subject: fact.Subject{Cgroup: "/docker/" + id}},
			fact.Fact{Name: fact.GroupPeriods, Value: 300, Subject: fact.Subject{Cgroup: "/docker/" + id}})},
	}.Run(t.Context())
	if err != nil || len(r.Findings) != 1 {
		t.Fatalf("%+v, %v", r.Findings, err)
	}
	if got := r.Findings[0].Cures[0].Command; strings.Contains(got, "reboot") {
		t.Errorf("the command is %q", got)
	}
}

type named struct{ id, name string }

func (n named) List(context.Context, map[string]string) ([]engine.Container, error) {
	return []engine.Container{{ID: n.id, Name: n.name}}, nil
}

// Without privileges the doctor reports what it could not observe, and does not report it
// as fine.
func TestWithoutRoot(t *testing.T) {
	dir, err := os.MkdirTemp("", "unprivileged-")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	program := filepath.Join(dir, "program")
	if err := copyFile(program, "/proc/self/exe"); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), program, roleExamine)
	cmd.Dir, cmd.Stderr = "/", os.Stderr
	const nobodyID = 65534
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobodyID, Gid: nobodyID}}
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	var r doctor.Report
	if err := json.Unmarshal(out, &r); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"fadvise-storm", "kernel-lock", "stat-readers", "slow-allocation"} {
		if c := verdict(r, name); c.Verdict != doctor.NotJudged || c.Why == "" {
			t.Errorf("%+v", c)
		}
	}
	if c := verdict(r, "old-kernel"); c.Verdict == doctor.NotJudged {
		t.Errorf("a check that needs no privileges: %+v", c)
	}
	hinted := 0
	for _, g := range r.Gaps {
		if strings.Contains(g.Hint, "root") {
			hinted++
		}
	}
	if hinted < 3 {
		t.Errorf("gaps without hints: %+v", r.Gaps)
	}
}

// RaisePriority applies to all threads of the process, and to those that are started
// later.
func TestRaisePriority(t *testing.T) {
	if os.Geteuid() != 0 {
		if err := doctor.RaisePriority(); err == nil {
			t.Error("no error without CAP_SYS_NICE")
		}
		return
	}
	if err := doctor.RaisePriority(); err != nil {
		t.Fatal(err)
	}
	threads, err := os.ReadDir("/proc/self/task")
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range threads {
		b, err := os.ReadFile("/proc/self/task/" + x.Name() + "/stat")
		if err != nil {
			continue // the thread has ended
		}
		_, rest, _ := strings.Cut(string(b), ") ")
		if nice := strings.Fields(rest)[16]; nice != "-10" { // field 19, proc_pid_stat(5)
			t.Errorf("thread %s: nice %s, want -10", x.Name(), nice)
		}
	}
}

func copyFile(to, from string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_CREATE|os.O_WRONLY|os.O_EXCL, 0o755)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Close())
}
