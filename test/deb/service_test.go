package deb

import (
	"context"
	"encoding/json"
	"fmt"
	"html"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"holdfast/internal/control/api"
	"holdfast/internal/platform/linux/netns"
	"holdfast/test/lab"
	"holdfast/test/lab/labtest"
	"holdfast/test/machine"
)

// debian is a machine with an engine, on which packages are installed.
type debian struct {
	*machine.Machine
	t *testing.T
}

// newDebian boots a machine with the first package in dist/, the second beside it, and an engine
// with the images.
func newDebian(t *testing.T, images ...lab.Image) debian {
	t.Helper()
	d := debian{machine.Start(t), t}
	first, second := packages(t)
	for name, from := range map[string]string{"dist": first, "next": second} {
		d.copy(from, filepath.Join("root", name, filepath.Base(from)))
	}
	d.Run("systemctl start docker")
	for _, img := range images {
		d.write("root/image.tar", archiveOf(t, img))
		d.Run("docker load -q -i image.tar; rm image.tar")
	}
	return d
}

// serverImage returns the image of the test server.
func serverImage(t *testing.T) lab.Image {
	t.Helper()
	server := filepath.Join(t.TempDir(), "testserver")
	if err := labtest.BuildTestServer(t.Context(), server); err != nil {
		t.Fatal(err)
	}
	image, err := lab.Binary(labtest.TestServer, server)
	if err != nil {
		t.Fatal(err)
	}
	return image
}

// archiveOf returns an image in the format that engines load.
func archiveOf(t *testing.T, img lab.Image) string {
	t.Helper()
	archive, err := img.Archive()
	if err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(archive)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func (d debian) copy(from, to string) {
	d.t.Helper()
	text, err := os.ReadFile(from)
	if err != nil {
		d.t.Fatal(err)
	}
	d.write(to, string(text))
}

func (d debian) write(name, text string) {
	d.t.Helper()
	if err := os.MkdirAll(filepath.Dir(d.Path(name)), 0o755); err != nil {
		d.t.Fatal(err)
	}
	if err := os.WriteFile(d.Path(name), []byte(text), 0o644); err != nil {
		d.t.Fatal(err)
	}
}

// client returns a client that opens a new connection in the machine for each request.
func (d debian) client() *http.Client {
	dial := func(ctx context.Context, network, address string) (c net.Conn, err error) {
		err = netns.Do(d.Net(), func() error {
			c, err = (&net.Dialer{}).DialContext(ctx, network, address)
			return err
		})
		return c, err
	}
	return &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: dial}, Timeout: patience}
}

// session requests a session at the gateway, and returns the agent's record of it.
func (d debian) session(key string) (s api.Session) {
	d.t.Helper()
	res, err := d.client().Get("http://127.0.0.1:7070/s/" + key + "/")
	if err != nil {
		d.t.Fatalf("%v\n%s", err, d.Show("holdfast"))
	}
	res.Body.Close()
	if res.StatusCode != http.StatusOK {
		d.t.Fatalf("session %s: %s\n%s", key, res.Status, d.Show("holdfast"))
	}
	d.json(&s, "holdfast session show --json "+key)
	return s
}

// json decodes the output of a command.
func (d debian) json(to any, command string) {
	d.t.Helper()
	out, err := d.Command(d.t.Context(), command).Output()
	if err == nil {
		err = json.Unmarshal(out, to)
	}
	if err != nil {
		d.t.Fatalf("%s: %v\n%s", command, err, out)
	}
}

// awaited waits until a script succeeds.
func (d debian) awaited(what, script string) {
	d.t.Helper()
	for begun := time.Now(); ; time.Sleep(100 * time.Millisecond) {
		out, err := d.Command(d.t.Context(), script).CombinedOutput()
		if err == nil {
			return
		}
		if time.Since(begun) > patience {
			d.t.Fatalf("%s: %v\n%s\n%s", what, err, out, d.Show("holdfast"))
		}
	}
}

// knocking opens connections until stop is called. stop returns the numbers of connects and of
// failures.
func (d debian) knocking(url string) (stop func() (asked, failed int64)) {
	var asked, failed atomic.Int64
	quit, done := make(chan struct{}), make(chan struct{})
	client := d.client()
	go func() {
		defer close(done)
		for {
			select {
			case <-quit:
				return
			case <-time.After(5 * time.Millisecond):
			}
			asked.Add(1)
			res, err := client.Get(url)
			if err == nil {
				if _, err = io.Copy(io.Discard, res.Body); err == nil && res.StatusCode != http.StatusOK {
					err = fmt.Errorf("%s", res.Status)
				}
				res.Body.Close()
			}
			if err != nil {
				failed.Add(1)
				d.t.Log(err)
			}
		}
	}()
	return func() (int64, int64) { close(quit); <-done; return asked.Load(), failed.Load() }
}

// templates of the service's sessions: one with a snapshot command, and one with warm containers
// that get their mounts and their name when a session claims them.
const templates = `sed -i '/^templates:/,$d' /etc/holdfast/holdfast.yaml
cat >>/etc/holdfast/holdfast.yaml <<END
templates:
  - name: web
    image: testserver:latest
    port: 8080
    snapshot: {command: [/usr/local/bin/save, "{key}"]}
  - name: quick
    image: testserver:latest
    port: 8080
    warm: 1
    mounts: [{type: bind, source: "/srv/{key}", target: /data}]
END
printf '#!/bin/sh\ncp /etc/hostname /srv/saved-$1 && chown 1000:1000 /srv/saved-$1\n' >/usr/local/bin/save
chmod +x /usr/local/bin/save`

// The package on a machine with systemd, under the restrictions of its units: it is installed,
// started, used, stopped by SIGSTOP, upgraded, removed and purged.
func TestServicesOfThePackage(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: a machine and an engine take their time, and root")
	}
	d := newDebian(t, serverImage(t))
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(d.Show("holdfast"))
		}
	})
	d.Run("apt-get install -y ./dist/holdfast_*.deb")
	if out, _ := d.Command(t.Context(), "systemctl is-active holdfast holdfast-gc").CombinedOutput(); strings.Contains(string(out), "\nactive") {
		t.Errorf("the installation has started something: %s", out)
	}
	d.collectsUnderItsUnit()
	d.Run(templates + "\nholdfast config check\nsystemctl enable --now holdfast")
	d.awaited("the unit that drains at a shutdown is active", "systemctl is-active holdfast-drain")
	d.worksUnderItsUnit()
	if labtest.Long() {
		d.hungIsStartedAgain()
		d.seesAsMuch()
		d.recordsUnderItsUnit()
	}
	d.standsBy()
	d.upgrades()
	d.isRemoved()
}

// collectsUnderItsUnit makes the collector's unit remove an image, whose files it links away
// first. The files belong to other users and have mode 0.
func (d debian) collectsUnderItsUnit() {
	t := d.t
	t.Helper()
	d.Run(`mkdir -p tree/closed && for n in $(seq 300); do echo $n >tree/closed/$n; done
chown -R 1000:1000 tree; chmod 0 tree/closed/* tree/closed
tar -C tree -c . | docker import - ci/app:1; rm -r tree
cat >/etc/holdfast/holdfast.yaml <<END
templates: [{name: web, image: testserver, port: 8080}]
gc: {every: 1s, min_age: 1s, rules: [{name: old, kinds: [image], match: ["ci/*"], keep_for: 1s}]}
END
systemctl start holdfast-gc`)
	d.awaited("the image is collected", `curl -s http://127.0.0.1:7071/metrics | grep -q '^holdfast_gc_deletions_total{kind="image",result="deleted"} 1'`)
	if out := d.Run("holdfast gc history --json --config /etc/holdfast/holdfast.yaml"); !strings.Contains(out, `"linked": 30`) {
		t.Errorf("the image's files were not linked away:\n%s\n%s", out, d.Show("holdfast-gc"))
	}
	if labtest.Long() {
		d.hangs("holdfast-gc", 3*time.Second, "curl -sf http://127.0.0.1:7071/healthz")
	}
	d.Run("systemctl stop holdfast-gc; rm /etc/holdfast/holdfast.yaml; apt-get install -y --reinstall -o Dpkg::Options::=--force-confmiss ./dist/holdfast_*.deb")
}

// worksUnderItsUnit boots sessions, claims a warm container, ends a session with a snapshot, and
// drains the node.
func (d debian) worksUnderItsUnit() {
	t := d.t
	t.Helper()
	d.session("alice")
	d.Run(`mkdir /srv/bob; echo "bob's file" >/srv/bob/file`)
	d.awaited("a container is warm", `curl -s http://127.0.0.1:7071/metrics | grep -q '^holdfast_warm_ready{template="quick"} 1'`)
	d.Run("holdfast session start bob --template quick")
	if out := d.Run("curl -s http://127.0.0.1:7071/metrics"); !strings.Contains(out, `holdfast_warm_claims_total{outcome="warm",template="quick"} 1`) {
		t.Errorf("the warm container was not claimed:\n%s", d.Show("holdfast"))
	}
	d.Run("holdfast session stop alice")
	if out := d.Run("stat -c %u /srv/saved-alice"); out != "1000\n" {
		t.Errorf("the snapshot's file is %s's", out)
	}
	var report struct {
		Dead, Released int
		Left           []any
	}
	d.session("carol")
	d.json(&report, "holdfast drain --json")
	if report.Dead < 2 || report.Released != 2 || len(report.Left) > 0 {
		t.Errorf("drained: %+v", report)
	}
	d.Run("holdfast node uncordon machine")
	if out := d.Run("holdfast gc plan"); out == "" {
		t.Error("garbage collection printed nothing")
	}
}

// hungIsStartedAgain stops the agent's main process, which then hangs as after a
// deadlock. systemd kills it and starts another one. The session stays.
func (d debian) hungIsStartedAgain() {
	t := d.t
	t.Helper()
	before := d.session("alice")
	d.hangs("holdfast", 7*time.Second, "holdfast session ls")
	if after := d.session("alice"); after.ContainerID != before.ContainerID || after.Epoch != before.Epoch {
		t.Errorf("the session was %+v and is %+v", before, after)
	}
}

// hangs sets the watchdog of a unit to limit and stops its main process for longer. It returns
// when systemd has started another process, after it has restored the watchdog.
func (d debian) hangs(unit string, limit time.Duration, well string) {
	t := d.t
	t.Helper()
	dir := "/run/systemd/system/" + unit + ".service.d"
	d.Run(fmt.Sprintf("mkdir -p %s; printf '[Service]\nWatchdogSec=%v\n' >%s/soon.conf; systemctl daemon-reload; systemctl restart %s", dir, limit, dir, unit))
	pid := d.mainPID(unit)
	// A process that answers is not restarted within a longer time.
	time.Sleep(limit + 2*time.Second)
	if now := d.mainPID(unit); now != pid {
		t.Fatalf("%s was %s and is %s: the watchdog has ended it\n%s", unit, pid, now, d.Show(unit))
	}
	d.Run("kill -STOP " + pid)
	d.awaited("systemd starts another one", fmt.Sprintf(`test "$(systemctl show -P MainPID %s)" != %s && systemctl is-active -q %s && %s`, unit, pid, unit, well))
	if log := d.Run("journalctl --sync; journalctl -o cat -u " + unit); !strings.Contains(log, "Watchdog timeout") || !strings.Contains(log, "goroutine 1 ") {
		t.Errorf("the journal does not say what hung:\n%s", log)
	}
	d.Run(fmt.Sprintf("rm -r %s; systemctl daemon-reload; systemctl restart %s", dir, unit))
}

func (d debian) mainPID(unit string) string {
	return strings.TrimSpace(d.Run("systemctl show -P MainPID " + unit))
}

// seesAsMuch compares examinations by the doctor with and without the agent's restrictions.
func (d debian) seesAsMuch() {
	t := d.t
	t.Helper()
	d.Run(`cd /run/systemd/system
{ printf '[Service]\nType=oneshot\nExecStart=/bin/sh -c "/usr/bin/holdfast doctor --for 6s --json >/run/within.json; true"\n'
  sed -n '/^# The privileges of the agent/,/^\[Install\]/{/^\[/d;p}' /usr/lib/systemd/system/holdfast.service; } >look.service
grep -c ^CapabilityBoundingSet= look.service
systemctl daemon-reload; systemctl start look`)
	var within, without struct {
		Gaps []struct{ Probe, Why string }
	}
	d.json(&within, "cat /run/within.json")
	d.json(&without, "holdfast doctor --for 6s --json || true")
	missed := map[string]bool{}
	for _, g := range without.Gaps {
		missed[g.Probe] = true
	}
	for _, g := range within.Gaps {
		if !missed[g.Probe] {
			t.Errorf("under the unit the doctor misses %s: %s", g.Probe, g.Why)
		}
	}
}

// recordsUnderItsUnit makes the agent record, as the dashboard's button does: an idle host, and a
// busy session. The recordings have programs and the kernel, and as much as a recording
// without the unit's restrictions.
func (d debian) recordsUnderItsUnit() {
	t := d.t
	t.Helper()
	record := func() (id string) {
		t.Helper()
		var r struct {
			ID      string
			Samples int
		}
		d.json(&r, `curl -sf --unix-socket /run/holdfast/holdfast.sock -H 'Content-Type: application/json' -d '{"for_ms": 3000}' http://localhost/v1/doctor/recordings`)
		if r.Samples == 0 {
			t.Errorf("recording %s has no samples\n%s", r.ID, d.Show("holdfast"))
		}
		return r.ID
	}
	d.session("alice")
	quiet := record()
	d.Run("systemd-run --quiet --unit=busy sh -c 'while :; do curl -s -o /dev/null http://127.0.0.1:7070/s/alice/; done'")
	busy := record()
	without := d.Run("holdfast doctor record --for 3s -o without.pb.gz --json")
	d.Run("systemctl stop busy")
	page := d.Run("curl -sf http://127.0.0.1:7071/doctor/recordings/" + busy)
	for _, want := range []string{`<svg class="flame"`, `<rect class="u"`, `<rect class="k"`, "testserver"} {
		if !strings.Contains(page, want) {
			t.Errorf("the recording has no %s:\n%s", want, page)
		}
	}
	for _, gap := range regexp.MustCompile(`<dt>Not seen</dt><dd>(.*?)</dd>`).FindAllStringSubmatch(page, -1) {
		if !strings.Contains(without, html.UnescapeString(gap[1])) {
			t.Errorf("under the unit a recording misses this: %s\n%s", gap[1], without)
		}
	}
	if page := d.Run("curl -sf 'http://127.0.0.1:7071/doctor/difference?good=" + quiet + "&bad=" + busy + "'"); !strings.Contains(page, "What grew from good to bad") || !strings.Contains(page, "/system.slice/busy.service") {
		t.Errorf("the difference:\n%s", page)
	}
}

// standsBy checks that the unit restores installed ports, and that a server below port 1024, as
// another user, can be restarted behind it.
func (d debian) standsBy() {
	t := d.t
	t.Helper()
	d.write("etc/systemd/system/web.service", `[Service]
ExecStart=/usr/bin/python3 -m http.server 800
User=nobody
AmbientCapabilities=CAP_NET_BIND_SERVICE
`)
	d.Run(`systemctl daemon-reload; systemctl start web
holdfast protect install --port 800; kill -KILL $(holdfast protect status --json | sed -n 's/.*"pid": *\([0-9]*\).*/\1/p')
systemctl enable --now holdfast-protect; holdfast protect status
systemctl status holdfast-protect | grep -q /proc/self/exe`)
	d.awaited("the server listens", "curl -s -o /dev/null http://127.0.0.1:800/")
	for _, backend := range []string{"park", "nfqueue"} {
		stop := d.knocking("http://127.0.0.1:800/")
		out, err := d.Command(t.Context(), "holdfast protect --port 800 --backend "+backend+" --json -- systemctl restart web").CombinedOutput()
		if err != nil {
			t.Errorf("protect by %s: %v\n%s", backend, err, out)
		}
		if asked, failed := stop(); asked == 0 || failed > 0 {
			t.Errorf("%s: %d of %d connects failed\n%s\n%s", backend, failed, asked, out, d.Show("holdfast-protect"))
		}
	}
	if out := d.Run("holdfast protect status --json"); !strings.Contains(out, `"pid": `) {
		t.Errorf("no process stands by: %s", out)
	}
}

// upgrades installs the next package while clients connect.
func (d debian) upgrades() {
	t := d.t
	t.Helper()
	before := d.session("alice")
	stop := d.knocking("http://127.0.0.1:7070/s/alice/")
	out := d.Run("apt-get install -y ./next/holdfast_*.deb")
	if asked, failed := stop(); failed > 0 || asked < 100 {
		t.Errorf("%d of %d connects failed\n%s", failed, asked, out)
	}
	if got := d.Run("holdfast version"); strings.Count(got, "v1.1.0") != 2 {
		t.Errorf("after the upgrade program and agent are\n%s%s", got, out)
	}
	if after := d.session("alice"); after.Epoch != before.Epoch || after.ContainerID != before.ContainerID {
		t.Errorf("the session was %+v and is %+v", before, after)
	}
	// systemd knows the new main process, and would restart it.
	if program := d.Run("readlink /proc/" + d.mainPID("holdfast") + "/exe"); program != "/usr/bin/holdfast\n" {
		t.Errorf("systemd's main process runs %s", program)
	}
}

// isRemoved removes the package, which drains and leaves the data, and purges it.
func (d debian) isRemoved() {
	t := d.t
	t.Helper()
	after := d.session("alice")
	pid, err := strconv.Atoi(strings.TrimSpace(d.Run("docker inspect -f '{{.State.Pid}}' " + after.ContainerID)))
	if err != nil {
		t.Fatal(err)
	}
	d.Run("apt-get remove -y holdfast")
	if out, err := d.Command(t.Context(), fmt.Sprintf("! kill -0 %d && ! test -e /usr/bin/holdfast && ! systemctl is-active holdfast && test -e /srv/saved-alice", pid)).CombinedOutput(); err != nil {
		t.Errorf("after the removal a process still runs: %v\n%s", err, out)
	}
	d.Run("test -e /var/lib/holdfast/node -a -e /etc/holdfast/holdfast.yaml")
	d.Run("apt-get purge -y holdfast; ! test -e /var/lib/holdfast; ! test -e /etc/holdfast; ! test -e /run/holdfast")
}

// The agent's unit permits what the agent does itself on containerd: networks, logs, control
// groups. On Docker the daemon does that.
func TestServiceOnContainerd(t *testing.T) {
	labtest.NeedLong(t, "TestServicesOfThePackage runs the same unit, test/agent TestSessionsOnContainerd the engine")
	d := newDebian(t)
	d.write("root/image.tar", archiveOf(t, serverImage(t)))
	d.Run(`systemctl stop docker.socket docker; systemctl start containerd
ctr -n holdfast images import image.tar >/dev/null
apt-get install -y ./dist/holdfast_*.deb
cat >/etc/holdfast/holdfast.yaml <<END
engine: {name: containerd}
templates: [{name: web, image: "docker.io/library/testserver:latest", port: 8080}]
END
systemctl start holdfast`)
	d.session("alice")
	d.Run("holdfast session logs alice | grep listening; (holdfast session exec alice -- /program -fail so 2>&1 || true) | grep 'told to fail: so'; holdfast session stop alice")
	d.session("bob")
	if out := d.Run("holdfast drain"); !strings.Contains(out, "1 session released") {
		t.Errorf("drained:\n%s", out)
	}
}

// ceilings are the maximum exposure levels of the units by systemd-analyze security, in tenths:
// 0 is the best, 100 the worst. Without restrictions a unit has 96, the agent's 98.
var ceilings = map[string]int{"holdfast": 60, "holdfast-gc": 24, "holdfast-drain": 9, "holdfast-protect": 42}

// The exposure of each unit is at most that of the last review.
func TestUnitsAreClosed(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: systemd-analyze, which make test installs")
	}
	page, err := os.ReadFile("../../docs/security.md")
	if err != nil {
		t.Fatal(err)
	}
	tenths := func(name string) string { return fmt.Sprintf("%d.%d", ceilings[name]/10, ceilings[name]%10) }
	if said := fmt.Sprintf("%s (agent), %s (collector), %s (drain) and %s (protect)", tenths("holdfast"), tenths("holdfast-gc"), tenths("holdfast-drain"), tenths("holdfast-protect")); !strings.Contains(string(page), said) {
		t.Errorf("docs/security.md does not say %q", said)
	}
	units, err := filepath.Glob("../../packaging/systemd/*.service")
	if err != nil || len(units) != len(ceilings) {
		t.Fatalf("units %v, %v", units, err)
	}
	for _, unit := range units {
		text, err := os.ReadFile(unit)
		if err != nil {
			t.Fatal(err)
		}
		// The same unit without its restrictions.
		open, _, _ := strings.Cut(string(text), "\nCapabilityBoundingSet=")
		name := strings.TrimSuffix(filepath.Base(unit), ".service")
		if got := exposure(t, name, string(text)); got > ceilings[name] {
			t.Errorf("%s is exposed by %d, want %d at most", name, got, ceilings[name])
		}
		if got := exposure(t, name, open); got < 90 {
			t.Errorf("%s without its restrictions is exposed by %d: this test measures nothing", name, got)
		}
	}
}
