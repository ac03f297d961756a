package e2b

import (
	"context"
	"strings"
	"syscall"
	"testing"
	"time"

	"holdfast/test/lab/labtest"
	"holdfast/test/poll"
)

// byDomain reaches everything by its name, with TLS and HTTP/2, and nothing that is not
// its own.
const byDomain = `
import time, urllib.request, urllib.error, base64, ssl
from e2b import Sandbox, SandboxException, AuthenticationException, NotFoundException, InvalidArgumentException, FileNotFoundException

def status(url, headers={}, data=None):
    try:
        r = urllib.request.Request(url, headers=headers, data=data)
        with urllib.request.urlopen(r) as answer:
            return answer.status, answer.read().decode().strip()
    except urllib.error.HTTPError as e:
        return e.code, ""

def refused(kind, call):
    try:
        call()
    except Exception as e:
        return type(e) is kind and ("Holdfast does not offer" in str(e) or "needs fork: allowed" in str(e)) or (type(e), str(e))
    return "no error"

a = Sandbox.create()
print("port", status("https://" + a.get_host(8080)))
server = a.commands.run("mkdir -p w && echo nine >w/index.html && httpd -f -p 9000 -h w", background=True)
a.commands.run("until wget -qO /dev/null http://127.0.0.1:9000/; do sleep 0.1; done")
print("listed port", status("https://" + a.get_host(9000)))
server.kill()
a.commands.run("while wget -qO /dev/null http://127.0.0.1:9000/; do sleep 0.1; done")
print("closed port", status("https://" + a.get_host(9000))[0])
print("other port", status("https://" + a.get_host(9001))[0])

a.files.write("x y.txt", "signed")
url = a.download_url("x y.txt", use_signature_expiration=60)
print("signed", status(url), status(url + "0")[0], status(url.replace("x%20y", "etc"))[0])
print("unsigned", status(url.split("&signature")[0])[0])
print("expired", status(a.download_url("x y.txt", use_signature_expiration=-5))[0])
print("root's", a.files.write("/root/r", "r", user="root").path, a.files.get_info("/root/r").owner)

b = Sandbox.create(network={"allow_public_traffic": False})
url = "https://" + b.get_host(8080)
print("private", status(url)[0], status(url, {"e2b-traffic-access-token": b.traffic_access_token})[0], status(url, {"e2b-traffic-access-token": a.sandbox_id})[0])
own = "https://49983-" + b.sandbox_id + ".e2b.test/"
print("another's token", status(own + "envs", {"X-Access-Token": a._envd_access_token})[0], status(own + "envs", {"X-Access-Token": b._envd_access_token})[0], status(own + "envs")[0])

# 3 MB come whole, also for a slow reader.
n = 0
for out, _, _ in a.commands.run("yes 12345678 | head -c 3000000", background=True):
    n += len(out)
print("output", n)
print("large file", len(a.files.read("/big", format="bytes")) if a.files.write("/big", b"x" * 5_000_000, user="root") else 0)

try:
    Sandbox.create(api_key="e2b_" + "1" * 40)
except AuthenticationException:
    print("wrong key")
for what, call in {
    "fork": lambda: a.fork(), "snapshot": lambda: a.create_snapshot(), "internet": lambda: Sandbox.create(allow_internet_access=False),
    "network": lambda: a.update_network({"deny_out": ["8.8.8.8"]}),
}.items():
    print(what, refused(SandboxException, call))
while not a.get_metrics():
    time.sleep(0.1)
m = a.get_metrics()[-1]
print("metrics", m.mem_used > 0, m.mem_total > m.mem_used, m.cpu_count > 0)
try:
    a.pause()
except SandboxException as e:
    print("pause", "cannot be paused" in str(e))
try:
    Sandbox.create("no-such-template")
except SandboxException as e:
    print("template", "no-such-template" in str(e))
try:
    a.files.read("nothing")
except FileNotFoundException:
    print("no file")

tty = a.pty.create(size=__import__("e2b").PtySize(rows=10, cols=40), timeout=30)
a.pty.send_stdin(tty.pid, b"stty size; exit\n")
text = b""
for _, _, out in tty:
    text += out or b""
print("terminal", b"10 40" in text)
for s in (a, b):
    s.kill()
print("gone", status("https://" + a.get_host(8080))[0], a.is_running(), Sandbox.kill(a.sandbox_id))
`

const byDomainPrints = `port (200, 'hello')
listed port (200, 'nine')
closed port 502
other port 403
signed (200, 'signed') 401 401
unsigned 401
expired 401
root's /root/r root
private 403 200 403
another's token 401 200 401
output 3000000
large file 5000000
wrong key
fork True
snapshot True
internet True
network True
metrics True True True
pause True
template True
no file
terminal True
gone 502 False False
`

func TestDomain(t *testing.T) {
	labtest.NeedLong(t, "starts many commands and containers")
	n := startDomain(t, "base", "[9000]", "")
	if got := n.python(byDomain); got != byDomainPrints {
		t.Errorf("the program prints\n%s\nwant\n%s", got, byDomainPrints)
	}
	if strings.Contains(n.errs.String(), apiKey) {
		t.Error("the log has the API key")
	}
}

// inJavaScript is the life of a sandbox with the SDK for JavaScript.
const inJavaScript = `
import { Sandbox } from 'e2b'
const sandbox = await Sandbox.create({ timeoutMs: 120_000, metadata: { who: 'js' }, envs: { GREETING: 'hello' } })
console.log((await sandbox.commands.run('echo $GREETING from $(whoami)')).stdout.trim())
const cat = await sandbox.commands.run('cat; exit 4', { background: true, stdin: true })
await sandbox.commands.sendStdin(cat.pid, 'one\n')
await sandbox.commands.closeStdin(cat.pid)
try { await cat.wait() } catch (e) { console.log(e.stdout.trim(), e.exitCode) }
const sleep = await sandbox.commands.run('sleep 1000', { background: true })
console.log((await sandbox.commands.list()).length, await sandbox.commands.kill(sleep.pid))
const seen = []
const watch = await sandbox.files.watchDir('.', e => seen.push(e.type + ' ' + e.name))
await sandbox.files.write('a.txt', 'text')
console.log(await sandbox.files.read('a.txt'), (await sandbox.files.list('.')).map(f => f.name).join())
while (!seen.includes('write a.txt')) await new Promise(r => setTimeout(r, 10))
await watch.stop()
await sandbox.files.remove('a.txt')
console.log(await sandbox.files.exists('a.txt'))
console.log(await (await fetch('https://' + sandbox.getHost(8080))).text())
console.log((await sandbox.getInfo()).metadata.who, (await Sandbox.list().nextItems()).length)
await sandbox.setTimeout(60_000)
await sandbox.kill()
console.log(await sandbox.isRunning())
`

func TestJavaScript(t *testing.T) {
	labtest.NeedLong(t, "needs Node.js and the SDK from npm")
	n := startDomain(t, "base", "[]", "")
	const want = "hello from user\none 4\n1 true\ntext a.txt\nfalse\nhello\n\njs 1\nfalse\n"
	for _, v := range nodeSDKs() {
		if got := n.javascriptWith(v, inJavaScript); got != want {
			t.Errorf("with %s the program prints\n%s\nwant\n%s", v.version, got, want)
		}
	}
}

// A sandbox ends at its time, also if the agent was killed before. Until then the next
// agent serves it, and its command is found again.
func TestTimeAndRestart(t *testing.T) {
	labtest.NeedLong(t, "kills and restarts an agent")
	n := start(t)
	id, pid, _ := strings.Cut(strings.TrimSpace(n.python(`
from e2b import Sandbox
s = Sandbox.create(timeout=3600)
print(s.sandbox_id, s.commands.run("echo begun; until [ -e go ]; do sleep 0.1; done; echo done", background=True, timeout=0).pid)
`)), " ")
	if err := n.cmd.Process.Signal(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	<-n.ended
	n.run()
	got := n.python(`
from e2b import Sandbox
s = Sandbox.connect("` + id + `")
c = s.commands.connect(` + pid + `)
s.files.write("go", "")
print(c.wait().stdout.strip())
print(s.commands.connect(` + pid + `).wait().stdout.split())
s.set_timeout(1)
`)
	if got != "done\n['begun', 'done']\n" {
		t.Errorf("after the restart: %q", got)
	}
	c := n.client()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	poll.Until(t, "the sandbox has ended", func() bool {
		all, err := c.Sessions(ctx)
		return err == nil && len(all) == 0
	})
}
