package fleet

import (
	"testing"
	"time"

	"holdfast"
	"holdfast/internal/platform/store/etcd"
)

// TestClusterSurvivesItsLeader: etcd as the fleet has it, reached through a link.
func TestClusterSurvivesItsLeader(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: outside a lab the members' addresses may be in use")
	}
	c := newCluster(t.TempDir(), t.TempDir(), []string{"/proc/self/exe", RoleMember})
	t.Cleanup(c.stop)
	if err := c.start(t.Context()); err != nil {
		t.Fatal(err)
	}
	o, err := newObserver(t.Context(), c.endpoints())
	if err != nil {
		t.Fatal(err)
	}
	o.start()
	t.Cleanup(func() {
		if err := o.close(); err != nil {
			t.Error(err)
		}
	})
	l, err := newLink("127.0.3.1", 2379, c.endpoints())
	if err != nil {
		t.Fatal(err)
	}
	l.start()
	t.Cleanup(func() {
		if err := l.close(); err != nil {
			t.Error(err)
		}
	})
	s, err := etcd.Dial(t.Context(), etcd.Config{Endpoints: l.endpoints()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	lease, _, err := s.Grant(t.Context(), time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	claim := func(key holdfast.SessionKey) {
		t.Helper()
		var err error
		for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
			if _, err = s.Claim(t.Context(), holdfast.Owner{Key: key, Node: "n1", State: holdfast.Ready}, lease); err == nil {
				return
			}
		}
		t.Fatal(err)
	}
	claim("before")
	leader, err := c.leader(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	leader.kill()
	claim("without")
	if err := leader.launch(); err != nil {
		t.Fatal(err)
	}
	if err := leader.process.awaitReady(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := c.loseLeader(t.Context()); err != nil { // the one that came back counts again
		t.Fatal(err)
	}
	claim("after")
	changes, err := o.all(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var keys []holdfast.SessionKey
	for _, c := range changes {
		keys = append(keys, c.key)
	}
	if len(keys) < 3 || keys[0] != "before" || keys[len(keys)-1] != "after" {
		t.Errorf("the observer saw %v", keys)
	}
}

func TestProcessThatEndsByItself(t *testing.T) {
	dir := t.TempDir()
	p, err := startProcess("etcd-x", []string{"/proc/self/exe", RoleMember, "{"}, dir+"/log", true)
	if err != nil {
		t.Fatal(err)
	}
	if err := p.awaitReady(t.Context()); err == nil {
		t.Error("it got ready")
	}
	<-p.ended
	if err := p.fault(); err == nil {
		t.Error("no member noticed")
	}
	p.kill()
	if err := p.fault(); err != nil {
		t.Errorf("it was killed, and that is a fault: %v", err)
	}
}
