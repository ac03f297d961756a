package rig

import (
	"fmt"
	"os"
	"testing"
	"time"
)

// TestMain also plays the role of an etcd member.
func TestMain(m *testing.M) {
	if code, played := PlayMember(); played {
		os.Exit(code)
	}
	if len(os.Args) > 1 && os.Args[1] == roleClock {
		tellTime()
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func TestProcessThatEndsByItself(t *testing.T) {
	dir := t.TempDir()
	p, err := Start("etcd-x", []string{"/proc/self/exe", RoleMember, "{"}, dir+"/log", 0, true)
	if err != nil {
		t.Fatal(err)
	}
	if err := p.AwaitReady(t.Context()); err == nil {
		t.Error("a process that cannot start got ready")
	}
	<-p.Ended
	if err := p.Fault(); err == nil {
		t.Error("a process that ended by itself is not a fault")
	}
	p.Kill()
	if err := p.Fault(); err != nil {
		t.Errorf("a process that the bench killed is a fault: %v", err)
	}
}

// The rig follows a process that a child has started as its successor.
func TestAdoptedProcess(t *testing.T) {
	dir := t.TempDir()
	for name, c := range map[string]struct {
		script string
		fails  bool
	}{
		"ends well": {"trap 'echo a=rpc error: code; exit 0' TERM", false}, "fails": {"trap 'echo error: no; exit 3' TERM", true},
	} {
		script := c.script + "; echo $$ > " + dir + "/pid.new; mv " + dir + "/pid.new " + dir + "/pid; while :; do sleep 0.02; done"
		first, err := Start(name, []string{"/bin/sh", "-c", `/bin/sh -c "$1" & exit`, "sh", script}, dir+"/"+name, 0, false)
		if err != nil {
			t.Fatal(err)
		}
		if err := first.AwaitEnd(Patience); err != nil {
			t.Fatal(err)
		}
		var pid int
		for end := time.Now().Add(Patience); pid == 0; time.Sleep(10 * time.Millisecond) {
			text, _ := os.ReadFile(dir + "/pid")
			if fmt.Sscan(string(text), &pid); time.Now().After(end) {
				t.Fatal("the successor has not started")
			}
		}
		os.Remove(dir + "/pid")
		p, err := first.Adopt(pid)
		if err != nil {
			t.Fatal(err)
		}
		if p.PID() != pid || p.Fault() != nil {
			t.Errorf("%s: process %d, want %d: %v", name, p.PID(), pid, p.Fault())
		}
		if err := p.Terminate(Patience); (err != nil) != c.fails {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestClusterOnFreePorts(t *testing.T) {
	c, err := NewCluster(ClusterOptions{Members: 1, Dir: t.TempDir(), Role: []string{"/proc/self/exe", RoleMember}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Stop)
	if err := c.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	leader, err := c.Leader(t.Context())
	if err != nil || leader != c.Members[0] {
		t.Errorf("leader %v, %v", leader, err)
	}
}
