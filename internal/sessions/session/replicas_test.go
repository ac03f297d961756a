package session

import (
	"errors"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"holdfast"
)

// The keys of a group are for its replicas: neither the default template nor another one
// gets them, and the group's template gets no others. It is never the default one.
func TestKeysOfAGroup(t *testing.T) {
	m := New(Config{Boots: 1, Templates: []Template{{Name: "db", Replicas: 2}, {Name: "web"}}}, Deps{Metrics: NewMetrics(prometheus.NewRegistry())})
	for _, c := range []struct {
		key, template string
		fits          bool
	}{
		{"alice", "", true}, {"db", "", false}, {"db-0", "", false}, {"db-12", "web", false}, {"db-x", "web", true}, {"db-01", "web", true},
		{"db-0", "db", true}, {"db-17", "db", true}, {"db", "db", false}, {"alice", "db", false}, {"web-1", "web", true},
	} {
		tmpl, err := m.template(c.template)
		if err != nil {
			t.Fatal(err)
		}
		if err := m.fits(holdfast.SessionKey(c.key), tmpl); (err == nil) != c.fits || err != nil && !errors.Is(err, holdfast.ErrNotFound) {
			t.Errorf("%s from %s: %v", c.key, tmpl.Name, err)
		}
	}
	alone := New(Config{Boots: 1, Templates: []Template{{Name: "db", Replicas: 2}}}, Deps{Metrics: NewMetrics(prometheus.NewRegistry())})
	if got, err := alone.template(""); !errors.Is(err, holdfast.ErrNotFound) {
		t.Errorf("a session of any key gets template %s, %v", got.Name, err)
	}
	m.cfg.IdleStop = time.Second
	replica := &entry{phase: ready, template: Template{Replicas: 2}}
	if m.idleLocked(replica) || !m.idleLocked(&entry{phase: ready}) {
		t.Error("a replica is idle, or another session is not")
	}
}
