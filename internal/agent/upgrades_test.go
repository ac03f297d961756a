package agent

import (
	"errors"
	"log/slog"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"holdfast"
	"holdfast/internal/control/api"
)

func testUpgrades(t *testing.T, version string, note []byte) *upgrades {
	t.Helper()
	u, err := newUpgrades(version, note, slog.New(slog.NewTextHandler(t.Output(), nil)))
	if err != nil {
		t.Fatal(err)
	}
	return u
}

// TestUpgradeIsToldOn: what one agent began the next one tells of, under the same
// id.
func TestUpgradeIsToldOn(t *testing.T) {
	old := testUpgrades(t, "v1", nil)
	if s := old.report().State; s != api.UpgradeNone {
		t.Errorf("at first: %s", s)
	}
	if err := old.begin(); err != nil {
		t.Fatal(err)
	}
	if err := old.begin(); !errors.Is(err, holdfast.ErrBusy) || holdfast.HintOf(err) == "" {
		t.Errorf("a second one: %v", err)
	}
	old.step("quiet")
	old.shut()
	note, err := old.note()
	if err != nil {
		t.Fatal(err)
	}
	next := testUpgrades(t, "v2", note)
	if err := next.begin(); !errors.Is(err, holdfast.ErrBusy) {
		t.Errorf("another one before the first is over: %v", err)
	}
	next.serving(7)
	u := next.report()
	if u.ID != old.report().ID || u.State != api.UpgradeOnTrial || u.Sessions != 7 || u.Held <= 0 || u.From.Version != "v1" || len(u.Steps) != 2 {
		t.Errorf("%+v", u)
	}
	next.over()
	if u := next.report(); u.State != api.UpgradeDone || len(u.Steps) != 3 {
		t.Errorf("%+v", u)
	}
	if err := next.begin(); err != nil || next.report().ID == u.ID {
		t.Errorf("the next one: %v, %+v", err, next.report())
	}
	if _, err := newUpgrades("v2", []byte("what"), nil); err == nil {
		t.Error("a note that cannot be read")
	}
}

// TestUpgradeThatFailed: it is over when the old agent serves, which it may have
// done all the time.
func TestUpgradeThatFailed(t *testing.T) {
	u := testUpgrades(t, "v1", nil)
	if err := u.begin(); err != nil {
		t.Fatal(err)
	}
	u.fail(holdfast.WithHint(errors.New("no such program"), "install it"))
	if r := u.report(); r.State != api.UpgradeFailed || r.Error != "no such program" || r.Advice != "install it" || u.goingBack() {
		t.Errorf("%+v", r)
	}
	if err := u.begin(); err != nil {
		t.Fatal(err)
	}
	u.shut()
	u.fail(errors.New("it crashed"))
	if r := u.report(); r.State != api.UpgradeUnderWay || !u.goingBack() {
		t.Errorf("before the old one serves again: %+v", r)
	}
	u.serving(3)
	if r := u.report(); r.State != api.UpgradeFailed || r.Error != "it crashed" || r.Held <= 0 || u.goingBack() {
		t.Errorf("%+v", r)
	}
	u.register(prometheus.NewRegistry())
	u.register(prometheus.NewRegistry()) // the agent that serves again has figures of its own
}
