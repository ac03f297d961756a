package deb

import (
	"encoding/json"
	"os"
	"strings"
	"testing"

	"holdfast/test/lab/echoserver"
	"holdfast/test/lab/labtest"
)

// Under the restrictions of its unit the agent can save and restore a container.
func TestMemoryUnderTheUnit(t *testing.T) {
	labtest.NeedLong(t, "a machine, an engine and a restart of it")
	d := newDebian(t, serverImage(t))
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(d.Show("holdfast"))
		}
	})
	d.copy(labtest.Runsc(t), "usr/local/bin/runsc")
	if err := os.Chmod(d.Path("usr/local/bin/runsc"), 0o755); err != nil {
		t.Fatal(err)
	}
	d.Run(`apt-get install -y ./dist/holdfast_*.deb
cat >/etc/holdfast/holdfast.yaml <<END
moving: {runsc: /usr/local/bin/runsc, runtime: /var/lib/holdfast/runsc-holdfast}
templates: [{name: shell, image: "testserver:latest", port: 8080, runtime: runsc-holdfast, handover: memory}]
END
systemctl start holdfast
echo '{"runtimes": {"runsc-holdfast": {"path": "/var/lib/holdfast/runsc-holdfast"}}}' >/etc/docker/daemon.json
systemctl restart docker`)
	d.awaited("the runtime works", `curl -s http://127.0.0.1:7071/metrics | grep -q '^holdfast_runtime_works{runtime="runsc-holdfast"} 1'`)
	first := d.process("alice")
	for range 2 {
		if out := d.Run("holdfast session suspend alice"); !strings.Contains(out, "is suspended") {
			t.Errorf("it says %q", out)
		}
		if out := d.Run("stat -c %a /var/lib/holdfast/suspended/alice@*"); out != "600\n" {
			t.Errorf("the image's mode is %s", out)
		}
		if out := d.Run("holdfast session resume alice"); !strings.Contains(out, "with its memory") {
			t.Errorf("it says %q", out)
		}
		if again := d.process("alice"); again != first {
			t.Errorf("the process of epoch %s became one of %s", first, again)
		}
	}
	d.Run("holdfast session stop alice; test -z \"$(ls -A /var/lib/holdfast/suspended)\"")
}

// process identifies a process of a session by the epoch with which it was started.
func (d debian) process(key string) string {
	d.t.Helper()
	d.session(key)
	var r echoserver.Reply
	if err := json.Unmarshal([]byte(d.Run("curl -s http://127.0.0.1:7070/s/"+key+"/")), &r); err != nil || r.Epoch == "" {
		d.t.Fatalf("it says %+v, %v", r, err)
	}
	return r.Epoch
}
