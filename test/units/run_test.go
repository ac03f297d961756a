package units

import (
	"strings"
	"testing"
)

const supervised = `cat >/etc/nginx/web.conf <<END
error_log stderr;
pid /run/web.pid;
worker_processes 2;
events {}
http {
  access_log off;
  server { listen 16000; location / { return 200 "pong\n"; } }
}
END
cat >/etc/systemd/system/web.service <<END
[Unit]
StartLimitIntervalSec=0
[Service]
Type=notify
ExecStart=/usr/bin/holdfast protect run --backoff 20ms -- nginx -c /etc/nginx/web.conf -g "daemon off;"
ExecReload=/bin/kill -HUP \$MAINPID
FileDescriptorStoreMax=16
Restart=on-failure
RestartSec=300ms
END
systemctl daemon-reload; systemctl start web`

// A server under "protect run" in a systemd service refuses no connection when it crashes,
// when its supervisor is killed, and when the service is restarted or reloaded. A stop
// refuses them.
func TestSupervisedService(t *testing.T) {
	h := newHost(t)
	h.Run(supervised)
	for _, c := range []struct{ what, script string }{
		{"nginx is killed", `for n in 1 2 3; do pid=$(cat /run/web.pid); kill -KILL $pid; while test "$(cat /run/web.pid)" = $pid; do sleep 0.02; done; sleep 0.2; done`},
		{"the supervisor is killed", `for n in 1 2; do pid=$(systemctl show -P MainPID web); kill -KILL $pid; while test "$(systemctl show -P MainPID web)" = $pid || ! systemctl is-active -q web; do sleep 0.02; done; done`},
		{"the service is restarted", "for n in 1 2 3; do systemctl restart web; done"},
		{"the service is reloaded", "systemctl reload web; sleep 0.2"},
	} {
		if h.under("# " + c.what + "\n" + c.script); h.refused > 0 {
			t.Errorf("%s: %d clients were refused\n%s", c.what, h.refused, h.Show("web"))
		}
	}
	if out := h.Run("ss -Hltn sport = 16000 | wc -l; systemctl show -P NFileDescriptorStore web"); strings.Join(strings.Fields(out), " ") != "2 1" {
		t.Errorf("sockets and stored ones: %s", out)
	}
	h.Run("systemctl stop web; ! ss -Hltn sport = 16000 | grep .")
	if c, err := h.dial("tcp", address); err == nil {
		c.Close()
		t.Error("a client is not refused after a stop")
	}
}
