package rig

import (
	"context"
	"fmt"
	"os"
	"testing"
)

// TestMain also plays the role of an etcd member.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == RoleMember {
		if err := Member(context.Background(), os.Args[2:], os.Stdin, os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
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
