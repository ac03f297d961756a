package units

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"testing"
	"time"

	"holdfast/internal/hosts/protect/protecttest"
)

// A client's connection survives two restarts of a protected unit, although the hold's own
// unit has ended. Then the process that serves it ends by itself.
func TestKeptConnectionOfAUnit(t *testing.T) {
	h := newHost(t)
	h.withHAProxy()
	h.Run("holdfast protect install --unit haproxy --keep idle --keep-for 5s")
	c, err := h.dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	r := bufio.NewReader(c)
	ask(t, c, r)
	for range 2 {
		h.Run("systemctl restart haproxy; until systemctl is-active -q holdfast-protect-restart@haproxy.service; do sleep 0.01; done")
		ask(t, c, r)
	}
	h.awaited("the relay has ended", "! grep -qs holdfast-relay /proc/[0-9]*/comm")
	h.Run("holdfast protect uninstall --unit haproxy; ! systemctl list-units --all | grep holdfast-protect")
}

// ask sends a request, and reads its answer.
func ask(t *testing.T, c net.Conn, r *bufio.Reader) {
	t.Helper()
	_ = c.SetDeadline(time.Now().Add(protecttest.Patience))
	if _, err := io.WriteString(c, "GET / HTTP/1.1\r\nHost: x\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	resp, err := http.ReadResponse(r, nil)
	if err != nil {
		t.Fatal(err)
	}
	if b, err := io.ReadAll(resp.Body); string(b) != "pong" || err != nil {
		t.Fatalf("got %q, %v", b, err)
	}
}
