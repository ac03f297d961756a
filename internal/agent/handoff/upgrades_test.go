package handoff

import (
	"errors"
	"log/slog"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"holdfast"
	"holdfast/internal/control/api"
)

func testUpgrades(t *testing.T, version string, note []byte) *Upgrades {
	t.Helper()
	u, err := NewUpgrades(version, note, slog.New(slog.NewTextHandler(t.Output(), nil)))
	if err != nil {
		t.Fatal(err)
	}
	return u
}

// The next agent reports the upgrade that the previous agent began, under the same id.
func TestUpgradeContinuesInTheNextAgent(t *testing.T) {
	old := testUpgrades(t, "v1", nil)
	if s := old.Report().State; s != api.UpgradeNone {
		t.Errorf("at first: %s", s)
	}
	if err := old.begin(); err != nil {
		t.Fatal(err)
	}
	if err := old.begin(); !errors.Is(err, holdfast.ErrBusy) || holdfast.HintOf(err) == "" {
		t.Errorf("a second upgrade: %v", err)
	}
	old.Step("idle")
	old.Stopped()
	note, err := old.note()
	if err != nil {
		t.Fatal(err)
	}
	next := testUpgrades(t, "v2", note)
	if err := next.begin(); !errors.Is(err, holdfast.ErrBusy) {
		t.Errorf("another upgrade before the first is over: %v", err)
	}
	next.Serving(7)
	u := next.Report()
	if u.ID != old.Report().ID || u.State != api.UpgradeOnTrial || u.Sessions != 7 || u.Held <= 0 || u.From.Version != "v1" || len(u.Steps) != 2 {
		t.Errorf("%+v", u)
	}
	next.TrialOver()
	if u := next.Report(); u.State != api.UpgradeDone || len(u.Steps) != 3 {
		t.Errorf("%+v", u)
	}
	if err := next.begin(); err != nil || next.Report().ID == u.ID {
		t.Errorf("the next one: %v, %+v", err, next.Report())
	}
	if _, err := NewUpgrades("v2", []byte("what"), nil); err == nil {
		t.Error("an invalid note was accepted")
	}
}

// A failed upgrade is over when the old agent serves, which may never have stopped.
func TestUpgradeThatFailed(t *testing.T) {
	u := testUpgrades(t, "v1", nil)
	if err := u.begin(); err != nil {
		t.Fatal(err)
	}
	u.fail(holdfast.WithHint(errors.New("no such program"), "install it"))
	if r := u.Report(); r.State != api.UpgradeFailed || r.Error != "no such program" || r.Advice != "install it" || u.rollingBack() {
		t.Errorf("%+v", r)
	}
	if err := u.begin(); err != nil {
		t.Fatal(err)
	}
	u.Stopped()
	u.fail(errors.New("it crashed"))
	if r := u.Report(); r.State != api.UpgradeUnderWay || !u.rollingBack() {
		t.Errorf("before the old agent serves again: %+v", r)
	}
	u.Serving(3)
	if r := u.Report(); r.State != api.UpgradeFailed || r.Error != "it crashed" || r.Held <= 0 || u.rollingBack() {
		t.Errorf("%+v", r)
	}
	u.Register(prometheus.NewRegistry())
	u.Register(prometheus.NewRegistry()) // the agent that serves again has a registry of its own
}
