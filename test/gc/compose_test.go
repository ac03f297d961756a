package gc

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"holdfast/internal/hosts/gc"
	"holdfast/test/poll"
)

// composeFile is a project whose services share a network, a named volume and an anonymous one.
const composeFile = `
version: "2.4"
services:
  db:
    image: db:1
    command: [sh, -c, "test -e /data/first || date +%N > /data/first; exec httpd -f -p 80 -h /data"]
    volumes: ["records:/data", "/scratch"]
    networks: [back]
  web:
    image: web:1
    command: [sh, -c, "until wget -qO /tmp/first http://db/first; do sleep 0.1; done; exec httpd -f -p 80 -h /tmp"]
    depends_on: [db]
    networks: [back, front]
volumes: {records: {}}
networks: {back: {}, front: {}}
`

// A compose project that was stopped a day ago starts again with its data: the default rules
// leave its containers, networks, volumes and images, also on a full disk.
func TestComposeProjectThatIsStopped(t *testing.T) {
	h := newHost(t)
	h.image("db:1", 20)
	h.image("web:1", 20)
	h.image("unused:1", 20)
	h.network("leaked")
	dir := filepath.Join(t.TempDir(), "shop")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "docker-compose.yml"), []byte(composeFile), 0o644); err != nil {
		t.Fatal(err)
	}
	compose := func(args ...string) string {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), "docker-compose", append([]string{"--no-ansi"}, args...)...)
		cmd.Dir, cmd.Env = dir, append(os.Environ(), "DOCKER_HOST="+h.lab.Host())
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("docker-compose %s: %v\n%s", strings.Join(args, " "), err, out)
		}
		return strings.TrimSpace(string(out))
	}
	first := func() (written string) {
		t.Helper()
		poll.Until(t, "the web server has read the database", func() bool {
			written = compose("exec", "-T", "web", "sh", "-c", "cat /tmp/first || true")
			return len(written) > 3 && !strings.Contains(written, "No such file")
		})
		return written
	}
	compose("up", "-d")
	before := first()
	compose("stop", "-t", "0")

	// The ages of the rules are over, and the disk is above every mark.
	c := gc.DefaultConfig()
	c.MinAge, c.High, c.Low, c.Rules = 0, gc.Bytes(2), gc.Bytes(1), gc.DefaultRules()
	for i := range c.Rules {
		c.Rules[i].KeepFor = 0
	}
	cy := h.collect(c)
	h.expect("db:1", "shop_back", "shop_front", "web:1")
	if len(cy.Deleted) != 4 { // the leaked network, build cache, two images
		t.Errorf("deleted: %+v", cy.Deleted)
	}
	compose("start")
	if after := first(); after != before {
		t.Errorf("the database has %q, it had %q", after, before)
	}
	compose("down", "-v", "-t", "0")
}
