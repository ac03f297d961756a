package hosts

import (
	"strings"
)

// haproxy starts HAProxy, which answers each request with a page.
func (h *host) haproxy() {
	h.Helper()
	h.write("/etc/haproxy/haproxy.cfg", []byte(`defaults
  mode http
  timeout connect 1m
  timeout client 5m
  timeout server 5m
frontend web
  bind :16000
  bind 127.0.0.1:16002
  http-request return status 200 content-type text/plain string "hello\n"
`))
	h.run("systemctl restart haproxy")
}

// restarted runs a script that restarts HAProxy, while clients connect to a port.
func (h *host) restarted(port, script string) {
	h.Helper()
	pid := h.run("systemctl show -P MainPID haproxy")
	stop := h.knocking("http://127.0.0.1:" + port + "/")
	out := h.run(script)
	stop(out)
	if now := h.run("systemctl show -P MainPID haproxy"); now == pid {
		h.Errorf("HAProxy was not restarted: %s", out)
	}
}

// holds restarts HAProxy under protect.
func holds(h *host) {
	h.haproxy()
	h.restarted("16000", "holdfast protect --port 16000 --json -- systemctl restart haproxy")
	h.run("systemctl stop haproxy")
}

// holdsByEach restarts HAProxy under each backend of protect, and checks that nothing is left.
func holdsByEach(h *host) {
	h.haproxy()
	h.restarted("16000", "holdfast protect --backend park --port 16000 -- systemctl restart haproxy 2>&1")
	h.restarted("16000", "holdfast protect --backend nfqueue --port 16000 -- systemctl restart haproxy 2>&1")
	h.restarted("16002", "holdfast protect --backend plug --listen 127.0.0.1:16002 -- systemctl restart haproxy 2>&1") // only for loopback
	h.run("systemctl stop haproxy")
	// The backend migrate holds nothing. It needs a new server beside the old one.
	const haproxy = "haproxy -D -f /etc/haproxy/haproxy.cfg -p /run/test.pid"
	h.run(haproxy)
	stop := h.knocking("http://127.0.0.1:16000/")
	stop(h.run("old=$(cat /run/test.pid); holdfast protect --backend migrate --overlap --port 16000 -- " + haproxy + " -sf $old 2>&1; test $old != $(cat /run/test.pid)"))
	h.run("kill $(cat /run/test.pid)")
	for _, left := range []string{"nft list tables | grep holdfast-protect", "tc qdisc show dev lo | grep plug"} {
		if out := h.run(left + " || true"); out != "" {
			h.Errorf("protect has left %s", out)
		}
	}
}

// holdsUnit protects a unit once, and restarts it as if nothing knew about that.
func holdsUnit(h *host) {
	h.haproxy()
	h.run("holdfast protect install --unit haproxy")
	h.restarted("16000", "systemctl restart haproxy")
	h.restarted("16000", "systemctl restart haproxy")
	h.run("holdfast protect uninstall --unit haproxy; systemctl stop haproxy")
	if files := h.run("ls -d /etc/systemd/system/haproxy.service.d 2>/dev/null || true"); files != "" {
		h.Errorf("uninstall has left %s", files)
	}
}

// holdsPublished restarts a container with a published port.
func holdsPublished(h *host) {
	h.run(`docker run -d --name web -p 16001:80 holdfast-demo:latest sh -c "mkdir -p /www && echo I am web >/www/index.html && exec httpd -f -p 80 -h /www"`)
	h.awaited("the container answers", "curl -sSf http://127.0.0.1:16001/")
	started := h.run("docker inspect -f '{{.State.StartedAt}}' web")
	stop := h.knocking("http://127.0.0.1:16001/")
	out := h.run("holdfast protect --container web --timeout 5m -- docker restart -t 1 web 2>&1")
	stop(out)
	if now := h.run("docker inspect -f '{{.State.StartedAt}}' web"); strings.TrimSpace(now) == strings.TrimSpace(started) {
		h.Errorf("the container was not restarted: %s", out)
	}
	h.run("docker rm -f web")
}
