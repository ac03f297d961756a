package e2b

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"holdfast/internal/platform/runsc"
	"holdfast/test/lab"
	"holdfast/test/lab/labtest"
)

// newPausing returns a node whose sandboxes can be paused and copied: they run under gVisor.
func newPausing(t *testing.T, sdks string) *node {
	t.Helper()
	dir := t.TempDir()
	r := runsc.Runtime{Program: labtest.Runsc(t), Images: filepath.Join(dir, "staged")}
	script := filepath.Join(dir, "runtime")
	if err := os.Mkdir(r.Images, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := r.Install(script); err != nil {
		t.Fatal(err)
	}
	n := newNodeOn(t, labtest.Private(t, lab.Options{Args: []string{"--add-runtime=boxed=" + script}}), sdks)
	n.extra = fmt.Sprintf("moving: {runsc: %s, runtime: %s, staged: %s}", r.Program, script, r.Images)
	n.template = "    runtime: boxed\n    handover: memory\n    fork: allowed"
	return n
}

// keepsSecret is a template's command that keeps a random text in its memory only, and
// writes it to a file when it is asked.
const keepsSecret = `mkdir -p /tmp /www; (read x </proc/sys/kernel/random/uuid; while :; do if [ -e /tmp/ask ]; then rm /tmp/ask; echo $x >/tmp/answer; fi; sleep 0.1; done) & exec httpd -f -p 8080 -h /www`

// copying makes forks and a snapshot of a sandbox.
const copying = `
from e2b import Sandbox, SandboxException

def secret(s):
    return s.commands.run("rm -f /tmp/answer; touch /tmp/ask; until [ -s /tmp/answer ]; do sleep 0.1; done; cat /tmp/answer").stdout.strip()

s = Sandbox.create(timeout=600, metadata={"of": "parent"})
before = secret(s)
forks = s.fork(timeout=600, count=2)
print("forks", len(forks), [secret(f) == before for f in forks], secret(s) == before, [f.get_info().metadata for f in forks], len({x.sandbox_id for x in forks + [s]}))
for f in forks:
    f.kill()
v1 = s.create_snapshot(name="v1:latest")
s.files.write("/later", "later")
ids = lambda p: [x.snapshot_id for x in p.next_items()]
print("snapshot", v1.snapshot_id, v1.names, s.is_running(), ids(Sandbox.list_snapshots(name="v2")), ids(s.list_snapshots()))
t = Sandbox.create("v1", timeout=600)
print("from it", secret(t) == before, t.commands.run("cat /later 2>/dev/null || echo none").stdout.strip(), s.commands.run("cat /later").stdout.strip())
try:
    s.create_snapshot(name="v1")
except SandboxException as e:
    print("taken BadRequest", str(e)[:3])
print("removed", Sandbox.delete_snapshot("v1"), Sandbox.delete_snapshot("v1"))
s.kill()
t.kill()
for call in (lambda: Sandbox.create("v1"), lambda: s.fork()):
    try:
        call()
    except Exception as e:
        print(type(e).__name__)
`

const pausing = `
import time
from e2b import Sandbox, SandboxException

def secret(s):
    return s.commands.run("rm -f /tmp/answer; touch /tmp/ask; until [ -s /tmp/answer ]; do sleep 0.1; done; cat /tmp/answer").stdout.strip()

s = Sandbox.create(timeout=600)
before = secret(s)
s.files.write("/kept", "text")
s.commands.run("sleep 1000", background=True)
s.pause()
print("paused", len(before), s.is_running(), s.get_info().state.value, [x.state.value for x in Sandbox.list().next_items()], s.get_metrics())
again = Sandbox.connect(s.sandbox_id, timeout=600)
print("resumed", again.is_running(), secret(again) == before, again.files.read("/kept"), again.commands.list())
s.kill()

s = Sandbox.create(timeout=600, lifecycle={"on_timeout": "pause", "auto_resume": True})
before = secret(s)
s.set_timeout(0)
while s.get_info().state.value != "paused":
    time.sleep(0.1)
print("by itself", secret(s) == before, s.get_info().state.value)
s.pause()
print("killed", s.kill(), s.is_running())
try:
    Sandbox.connect(s.sandbox_id)
except SandboxException as e:
    print(type(e).__name__)
`

// A sandbox is paused and resumed with its memory and files, by a client and by its time.
func TestPauseAndResume(t *testing.T) {
	labtest.NeedLong(t, "runs sandboxes under gVisor, and saves their memory")
	n := newPausing(t, labtest.FreePort(t))
	n.environment = []string{"E2B_API_URL=http://" + n.sdks, "E2B_SANDBOX_URL=http://" + n.sdks}
	n.template += fmt.Sprintf("\n    command: [/bin/sh, -c, %q]", keepsSecret)
	n.configure(fmt.Sprintf("e2b: {listen: %q, domain: %q, api_keys_file: %s}", n.sdks, "e2b.localhost:"+portOf(n.sdks), n.keys), "shell", "[]")
	n.run()
	const want = "paused 36 False paused ['paused'] []\nresumed True True text []\nby itself True running\nkilled True False\nSandboxNotFoundException\n"
	if got := n.python(pausing); got != want {
		t.Errorf("the program prints\n%s\nwant\n%s", got, want)
	}
	const wantCopies = "forks 2 [True, True] True [{'of': 'parent'}, {'of': 'parent'}] 3\nsnapshot v1 ['v1:latest'] True [] ['v1']\nfrom it True none later\n" +
		"taken BadRequest 400\nremoved True False\nSandboxException\nSandboxNotFoundException\n"
	if got := n.python(copying); got != wantCopies {
		t.Errorf("the program prints\n%s\nwant\n%s", got, wantCopies)
	}
}
