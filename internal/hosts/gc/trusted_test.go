package gc

import (
	"cmp"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"holdfast"
)

// TestDataRootOfAnotherUser: a plan refuses a data root that another user can write, or
// can replace, for example that of a rootless engine.
func TestDataRootOfAnotherUser(t *testing.T) {
	if os.Geteuid() != 0 {
		if !testing.Short() {
			t.Fatal("only root can give directories away")
		}
		t.Skip("-short without root: only root can give directories away")
	}
	const user = 65534
	for name, c := range map[string]struct {
		change func(above, root string) error
		why    string
	}{
		"root's":              {func(string, string) error { return nil }, ""},
		"a user's":            {func(_, root string) error { return os.Chown(root, user, user) }, "root belongs to user 65534"},
		"in a user's":         {func(above, _ string) error { return os.Chown(above, user, user) }, "above belongs to user 65534"},
		"writable by all":     {func(_, root string) error { return os.Chmod(root, 0o777) }, "root is writable by all users"},
		"sticky":              {func(_, root string) error { return os.Chmod(root, 0o777|os.ModeSticky) }, "root is writable by all users"},
		"in a sticky one":     {func(above, _ string) error { return os.Chmod(above, 0o777|os.ModeSticky) }, ""},
		"in a group's":        {func(above, _ string) error { return os.Chown(above, 0, user) }, ""},
		"in a group's, write": {func(above, _ string) error { return cmp.Or(os.Chown(above, 0, user), os.Chmod(above, 0o770)) }, "above is writable by group 65534"},
		"link in a user's": {func(above, root string) error {
			to := filepath.Join(filepath.Dir(above), "to")
			return cmp.Or(os.Mkdir(to, 0o700), os.Remove(root), os.Symlink(to, root), os.Chown(above, user, user))
		}, "above belongs to user 65534"},
		"link to a user's": {func(above, root string) error {
			to := filepath.Join(filepath.Dir(above), "to")
			return cmp.Or(os.Mkdir(to, 0o700), os.Remove(root), os.Symlink(to, root), os.Chown(to, user, user))
		}, "to belongs to user 65534"},
	} {
		t.Run(name, func(t *testing.T) {
			m, log := newModel(time.Now()), slog.New(slog.DiscardHandler)
			col := hosted(t, imagesPolicy(), m, newCounter(), log, 40_000)
			above := filepath.Join(m.root, "above")
			m.root = filepath.Join(above, "root")
			if err := cmp.Or(os.MkdirAll(m.root, 0o755), c.change(above, m.root)); err != nil {
				t.Fatal(err)
			}
			_, err := col.Plan(t.Context())
			switch {
			case c.why == "" && err != nil:
				t.Error(err)
			case c.why != "" && (err == nil || !strings.Contains(err.Error(), c.why) || holdfast.HintOf(err) == ""):
				t.Errorf("the error is %v, want %q", err, c.why)
			}
		})
	}
}
