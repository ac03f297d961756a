// Package units restarts a real HAProxy under a real systemd, on a machine of
// test/machine, while clients connect all the time.
package units

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"holdfast/internal/hosts/protect/protecttest"
	"holdfast/internal/platform/linux/netns"
	"holdfast/test/lab/labtest"
	"holdfast/test/machine"
)

func TestMain(m *testing.M) { os.Exit(labtest.Main(m)) }

// host is a machine with holdfast and HAProxy.
type host struct {
	*machine.Machine
	t       *testing.T
	refused int // of the failures in the last under
}

const address = "127.0.0.1:16000"

const goodConfig = `defaults
  mode http
  timeout connect 5s
  timeout client 60s
  timeout server 60s
frontend web
  bind :16000
  http-request return status 200 content-type text/plain string pong
`

func newHost(t *testing.T) *host {
	t.Helper()
	h := &host{Machine: machine.Start(t), t: t}
	if err := labtest.Build(t.Context(), "holdfast/cmd/holdfast", h.Path("usr/bin/holdfast")); err != nil {
		t.Fatal(err)
	}
	return h
}

// withHAProxy starts HAProxy under its own unit.
func (h *host) withHAProxy() {
	h.t.Helper()
	h.config(goodConfig)
	h.Run("systemctl start haproxy")
	h.awaited("HAProxy answers", "curl -sf http://"+address)
}

func (h *host) config(text string) {
	h.t.Helper()
	if err := os.WriteFile(h.Path("etc/haproxy/haproxy.cfg"), []byte(text), 0o644); err != nil {
		h.t.Fatal(err)
	}
}

// awaited waits until a script succeeds.
func (h *host) awaited(what, script string) {
	h.t.Helper()
	for begun := time.Now(); ; time.Sleep(20 * time.Millisecond) {
		out, err := h.Command(h.t.Context(), script).CombinedOutput()
		if err == nil {
			return
		}
		if time.Since(begun) > protecttest.Patience {
			h.t.Fatalf("%s: %v\n%s\n%s", what, err, out, h.Show("haproxy"))
		}
	}
}

func (h *host) dial(network, address string) (c net.Conn, err error) {
	err = netns.Do(h.Net(), func() error {
		c, err = (&net.Dialer{Timeout: protecttest.Patience}).DialContext(context.Background(), network, address)
		return err
	})
	return c, err
}

// under runs a script while clients connect, and returns the number of them that failed.
func (h *host) under(script string) (failed int) {
	h.t.Helper()
	load := protecttest.StartLoad(h.t, address, 2*time.Millisecond, h.dial)
	h.Run(script)
	total, errs, longest := load.Stop()
	h.t.Logf("%s: %d of %d clients failed, the slowest took %v", strings.SplitN(script, "\n", 2)[0], len(errs), total, longest)
	if total < 10 {
		h.t.Errorf("only %d clients connected", total)
	}
	h.refused = 0
	for i, err := range errs {
		if errors.Is(err, unix.ECONNREFUSED) {
			h.refused++
		}
		if i < 3 {
			h.t.Log(err)
		}
	}
	return len(errs)
}

const restarts = "for n in 1 2 3; do systemctl reset-failed haproxy; systemctl restart haproxy; done"

// A protected unit that `holdfast protect` restarts is held once, by that command.
func (h *host) isRestartedUnderProtect() {
	h.t.Helper()
	holds := h.holds()
	if failed := h.under("holdfast protect --unit haproxy -- systemctl restart haproxy"); failed > 0 {
		h.t.Errorf("%d clients failed", failed)
	}
	if n := h.holds(); n != holds {
		h.t.Errorf("%d holds of the unit", n-holds)
	}
	h.awaited("the unit's helper finds the hold", "journalctl -o cat -u 'holdfast-protect-hold@haproxy.service' | grep -q 'another protect holds connections'")
}

// Every restart of a protected unit is protected, and nothing else changes: a stop stops, a
// start that fails fails, a crash is restarted, and after uninstall nothing is left.
func TestRestartsOfAUnit(t *testing.T) {
	h := newHost(t)
	h.withHAProxy()
	before := h.Run("systemctl cat haproxy")
	h.refuses()
	if failed := h.under(restarts); failed == 0 {
		t.Error("no client failed without protection: the test shows nothing")
	}
	h.Run("holdfast protect install --unit haproxy --dry-run; ! test -e /etc/systemd/system/haproxy.service.d")
	h.Run("holdfast protect install --unit haproxy; cd /etc/systemd/system; find -newer /usr/bin/holdfast -name '*holdfast*' | sort >/tmp/first; stat -c %Y haproxy.service.d/* >>/tmp/first")
	h.Run("holdfast protect install --unit haproxy.service; cd /etc/systemd/system; find -newer /usr/bin/holdfast -name '*holdfast*' | sort >/tmp/second; stat -c %Y haproxy.service.d/* >>/tmp/second; cmp /tmp/first /tmp/second")
	if out := h.Run("systemd-analyze verify --man=no haproxy.service 'holdfast-protect-restart@haproxy.service' 'holdfast-protect-reload@haproxy.service' 'holdfast-protect-hold@haproxy.service' 2>&1"); strings.Contains(out, "holdfast") {
		t.Errorf("systemd-analyze says:\n%s", out)
	}
	h.isProtected()
	h.reloads()
	h.stops()
	h.failsToStart()
	h.crashes()
	h.isProtected()
	h.isRestartedUnderProtect()
	h.Run("mv /usr/bin/holdfast /root/; systemctl restart haproxy; mv /root/holdfast /usr/bin/")
	h.Run("holdfast protect uninstall --unit haproxy; ! systemctl list-units --all | grep holdfast-protect; ! find /etc/systemd | grep holdfast-protect; ! ls /run/holdfast/protect | grep -v history")
	if after := h.Run("systemctl cat haproxy"); after != before {
		t.Errorf("the unit was\n%s\nand is\n%s", before, after)
	}
	if failed := h.under(restarts); failed == 0 {
		t.Error("no client failed after uninstall")
	}
	h.hasAStopCommand()
}

// hasAStopCommand: the unit of Debian's nginx has an ExecStop= of its own, which comes before
// the one of the drop-in. The helper comes before both.
func (h *host) hasAStopCommand() {
	h.t.Helper()
	h.Run(`systemctl stop haproxy || true
cat >/etc/nginx/nginx.conf <<END
pid /run/nginx.pid;
events {}
http { access_log off; server { listen 16000; location / { return 200 "pong\n"; } } }
END
systemctl reset-failed; systemctl start nginx; systemctl cat nginx | grep -q ^ExecStop=; holdfast protect install --unit nginx --port 16000 --restart-only; ! ls /etc/systemd/system | grep reload`)
	const restart = "for n in 1 2 3; do systemctl restart nginx; until systemctl is-active -q holdfast-protect-restart@nginx.service; do sleep 0.01; done; done"
	if failed := h.under(restart); failed > 0 {
		h.t.Errorf("%d clients of nginx failed\n%s", failed, h.journal())
	}
	h.Run("holdfast protect uninstall; ! find /etc/systemd | grep holdfast-protect")
}

// refuses: a unit that does not exist, and one that does not listen, are refused with one
// error and one hint.
func (h *host) refuses() {
	h.t.Helper()
	for _, c := range []struct{ unit, want string }{
		{"nosuch", "there is no such service"}, {"systemd-journald", "nothing listens"}, {"sysinit.target", "is not a service"}, {"../x.service", "is not the name of a service"},
	} {
		out, err := h.Command(h.t.Context(), "holdfast protect install --unit "+c.unit).CombinedOutput()
		if err == nil || !strings.Contains(string(out), c.want) || strings.Count(string(out), "error: ") != 1 || strings.Count(string(out), "hint: ") != 1 {
			h.t.Errorf("install --unit %s: %v\n%s", c.unit, err, out)
		}
	}
	if left, _ := filepath.Glob(h.Path("etc/systemd/system/*holdfast*")); len(left) > 0 {
		h.t.Errorf("refused, it has written %v", left)
	}
}

func (h *host) journal() string {
	return h.Run("journalctl --sync; journalctl -o cat --no-pager -n 100 -u 'holdfast-protect*'")
}

// holds returns the number of holds in the history. The last hold ends before.
func (h *host) holds() int {
	h.awaited("no hold is left", "! systemctl is-active -q holdfast-protect-hold@haproxy.service")
	return strings.Count(h.Run("holdfast protect history --json"), `"program": "haproxy.service"`)
}

func (h *host) isProtected() {
	h.t.Helper()

	before := h.holds()
	if failed := h.under(restarts); failed > 0 {
		h.t.Errorf("%d clients failed\n%s", failed, h.journal())
	}
	if after := h.holds(); after == before {
		h.t.Errorf("the history has %d holds before and after\n%s", before, h.journal())
	}
	if out := h.Run("holdfast protect status"); !strings.Contains(out, "haproxy.service  active  yes") {
		h.t.Errorf("status:\n%s", out)
	}
}

// reloads: the first reload shows that HAProxy keeps its sockets, and the others are not held.
func (h *host) reloads() {
	h.t.Helper()
	before := h.holds()
	if failed := h.under("for n in 1 2 3; do systemctl reload haproxy; done"); failed > 0 {
		h.t.Errorf("%d clients failed in reloads\n%s", failed, h.journal())
	}
	if after := h.holds(); after != before+1 {
		h.t.Errorf("of 3 reloads %d were held\n%s", after-before, h.journal())
	}
}

// stops: a stop holds no connection.
func (h *host) stops() {
	h.t.Helper()
	before := h.holds()
	h.Run("systemctl stop haproxy")
	if c, err := h.dial("tcp", address); err == nil {
		c.Close()
		h.t.Error("a client is not refused after a stop")
	}
	if after := h.holds(); after != before {
		h.t.Errorf("a stop was held\n%s", h.journal())
	}
	h.Run("systemctl start haproxy")
}

// failsToStart: a restart that fails lets go what it holds as soon as systemd gives up.
func (h *host) failsToStart() {
	h.t.Helper()
	h.config("nonsense\n")
	out, err := h.Command(h.t.Context(), "systemctl restart haproxy").CombinedOutput()
	if err == nil {
		h.t.Errorf("HAProxy starts with nonsense\n%s", out)
	}
	h.awaited("the hold ends", "systemctl is-failed haproxy && ! systemctl is-active 'holdfast-protect-hold@haproxy'")
	if out := h.journal(); !strings.Contains(out, "stays stopped") {
		h.t.Errorf("the hold did not end because the unit failed:\n%s", out)
	}
	if c, err := h.dial("tcp", address); err == nil {
		c.Close()
		h.t.Error("a client is not refused after a failed start")
	}
	h.config(goodConfig)
	h.Run("systemctl reset-failed haproxy; systemctl start haproxy")
	h.awaited("HAProxy answers again", "curl -sf http://"+address)
}

// crashes: systemd restarts a server that was killed.
func (h *host) crashes() {
	h.t.Helper()
	h.Run("systemctl kill -s KILL haproxy")
	h.awaited("HAProxy is started again", "curl -sf http://"+address)
}
