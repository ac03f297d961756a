package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"holdfast/internal/hosts/doctor/cure"
)

// Each group of a kubelet is cured in turn, also after one that fails.
func TestCureKubepods(t *testing.T) {
	var out bytes.Buffer
	groups, calls := []string{"/kubepods/a", "/kubepods/b", "/kubepods/c"}, 0
	broken := errors.New("it is in use")
	a := &app{ui: newUI(nil, &out, &out), deps: Deps{Cures: CureDeps{
		Kubepods: func(context.Context) ([]string, error) {
			if groups == nil {
				return nil, cure.ErrNothing
			}
			return groups, nil
		},
		Run: func(_ context.Context, c cure.Cure, o cure.Options) (cure.Report, error) {
			if c.Name != "memcg" || !o.Apply || o.Bytes != 1<<30 {
				t.Errorf("cure %s with %+v", c.Name, o)
			}
			r := cure.Report{Cure: c.Name, Target: groups[calls]}
			calls++
			if calls == 2 {
				return cure.Report{}, broken
			}
			r.Applied = true
			return r, nil
		},
	}}}
	run := func(args ...string) error {
		cmd := a.cureMemcg()
		cmd.SetArgs(args)
		cmd.SilenceErrors, cmd.SilenceUsage = true, true
		return cmd.ExecuteContext(t.Context())
	}
	a.ui.json = true
	var reports []cure.Report
	if err := run("--kubepods", "--apply"); !errors.Is(err, broken) || !strings.Contains(err.Error(), "/kubepods/b") {
		t.Errorf("one of three fails: %v", err)
	}
	if err := json.Unmarshal(out.Bytes(), &reports); err != nil || len(reports) != 2 || reports[0].Target != "/kubepods/a" || reports[1].Target != "/kubepods/c" {
		t.Errorf("reports %s, %v", out.Bytes(), err)
	}
	for _, words := range [][]string{{"--kubepods", "--self"}, {"--kubepods", "--cgroup", "/x"}, {"--self", "--cgroup", "/x"}} {
		if err := run(words...); err == nil || !strings.Contains(err.Error(), "exclude each other") {
			t.Errorf("%v: %v", words, err)
		}
	}
	groups = nil
	if err := run("--kubepods"); !errors.Is(err, cure.ErrNothing) {
		t.Errorf("nothing to do: %v", err)
	}
}
