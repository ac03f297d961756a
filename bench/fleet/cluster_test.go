package fleet

import (
	"testing"
	"time"

	"holdfast"
	"holdfast/bench/rig"
	"holdfast/internal/platform/store/etcd"
)

// Claims go through a link to an etcd cluster that loses its leader.
func TestClusterSurvivesItsLeader(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: outside a lab the members' addresses may be in use")
	}
	c, err := newEtcd(t.TempDir(), t.TempDir(), []string{"/proc/self/exe", rig.RoleMember})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Stop)
	if err := c.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	o, err := newObserver(t.Context(), c.Endpoints())
	if err != nil {
		t.Fatal(err)
	}
	o.start()
	t.Cleanup(func() {
		if err := o.close(); err != nil {
			t.Error(err)
		}
	})
	l, err := newLink("127.0.3.1", 2379, c.Endpoints())
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
		for end := time.Now().Add(rig.Patience); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
			if _, err = s.Claim(t.Context(), holdfast.Owner{Key: key, Node: "n1", State: holdfast.Ready}, lease); err == nil {
				return
			}
		}
		t.Fatal(err)
	}
	claim("before")
	leader, err := c.Leader(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	leader.Kill()
	claim("without")
	if err := leader.Launch(); err != nil {
		t.Fatal(err)
	}
	if err := leader.AwaitReady(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := loseLeader(t.Context(), c); err != nil { // the one that came back counts again
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
