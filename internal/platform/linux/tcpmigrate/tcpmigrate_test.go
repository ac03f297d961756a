package tcpmigrate_test

import (
	"os"
	"testing"

	"holdfast/internal/platform/linux/kfile"
	"holdfast/internal/platform/linux/tcpmigrate"
	"holdfast/test/lab/labtest"
)

func TestMain(m *testing.M) { os.Exit(labtest.Main(m)) }

// begin sets the setting of the test's own network namespace.
func begin(t *testing.T, to string) {
	t.Helper()
	if testing.Short() {
		t.Skip("-short: it needs root, and a network namespace of its own")
	}
	set(t, to)
	t.Cleanup(func() { set(t, "0") })
}

func set(t *testing.T, to string) {
	t.Helper()
	if err := kfile.Write("/proc/sys/net/ipv4/tcp_migrate_req", to); err != nil {
		t.Fatal(err)
	}
}

func on(t *testing.T) tcpmigrate.Switch {
	t.Helper()
	s, err := tcpmigrate.On()
	if err != nil {
		t.Fatal(err)
	}
	is(t, "1")
	return s
}

func off(t *testing.T, s tcpmigrate.Switch, want string) {
	t.Helper()
	if err := s.Off(); err != nil {
		t.Fatal(err)
	}
	is(t, want)
}

func is(t *testing.T, want string) {
	t.Helper()
	if got, err := tcpmigrate.Read(); err != nil || got != want {
		t.Errorf("the setting is %q, %v; want %q", got, err, want)
	}
}

// The last user restores the old value, in whatever order the users end.
func TestShared(t *testing.T) {
	for _, c := range []struct {
		name, was  string
		firstFirst bool
	}{
		{"off before, the first goes first", "0", true},
		{"off before, the first goes last", "0", false},
		{"on before", "1", true},
	} {
		t.Run(c.name, func(t *testing.T) {
			begin(t, c.was)
			a, b := on(t), on(t)
			for _, s := range []tcpmigrate.Switch{a, b} {
				if s.Was() != c.was {
					t.Errorf("it was %q, want %q", s.Was(), c.was)
				}
			}
			if got, err := tcpmigrate.Original(); err != nil || got != c.was {
				t.Errorf("it was %q, %v; want %q", got, err, c.was)
			}
			if !c.firstFirst {
				a, b = b, a
			}
			off(t, a, "1")
			off(t, b, c.was)
		})
	}
}

// The setting of a killed user is restored, unless there is another user.
func TestTidy(t *testing.T) {
	begin(t, "0")
	b := on(t)
	off(t, tcpmigrate.Before("0"), "1")
	off(t, b, "0")
	set(t, "1") // and it has no user
	off(t, tcpmigrate.Before("1"), "1")
	off(t, tcpmigrate.Before("0"), "0")
}
