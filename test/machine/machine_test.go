package machine_test

import (
	"os"
	"strings"
	"testing"

	"holdfast/test/machine"
)

// A machine has its own systemd, which runs units without an effect on the host.
func TestMachine(t *testing.T) {
	m := machine.Start(t)
	m.Run(`cat >/etc/systemd/system/x.service <<END
[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/bin/sh -c 'echo hello from a unit; touch /var/lib/x /usr/x || true'
ProtectSystem=full
END
systemctl start x`)
	if out := m.Run("journalctl --sync; journalctl -o cat -u x"); !strings.Contains(out, "hello from a unit") || !strings.Contains(out, "Read-only file system") {
		t.Errorf("the unit says\n%s", out)
	}
	if _, err := os.Stat(m.Path("var/lib/x")); err != nil {
		t.Error(err)
	}
	for _, name := range []string{"/var/lib/x", "/etc/systemd/system/x.service"} {
		if _, err := os.Lstat(name); err == nil {
			t.Errorf("the machine has made %s on the host", name)
		}
	}
	if out := m.Run("ip -br link; ps -e -o comm="); strings.Contains(out, "eth") || !strings.Contains(out, "systemd-journal") {
		t.Errorf("in the machine there is\n%s", out)
	}
	// The kernel settings of the host do not change.
	if out, err := m.Command(t.Context(), "echo 1 >/proc/sys/vm/swappiness").CombinedOutput(); err == nil {
		t.Errorf("a setting of the host was changed: %s", out)
	}
}
