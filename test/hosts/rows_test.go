package hosts

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/coder/websocket"
	"golang.org/x/sync/errgroup"

	"holdfast"
	"holdfast/internal/control/api"
	"holdfast/test/lab"
)

// row is a property of the package that each host is tested for.
type row struct {
	name  string
	title string // for readers of docs/hosts.md
	run   func(h *host)
}

// install is the row of every other row's preparation.
const install = "install"

// rows are the properties in the order of the tests, cheap ones first.
func rows() []row {
	return []row{
		{"session", "A request boots a session, and its terminal works", isServed},
		{"restart", "`systemctl restart holdfast` keeps sessions", survivesRestart},
		{"cgroup-kill", "systemd kills the agent's control group: sessions stay", survivesKill},
		{"upgrade", "`apt` upgrades the package: no connect is refused, sessions stay", survivesUpgrade},
		{"protect", "`protect -- systemctl restart haproxy`: no connect is refused", holds},
		{"backends", "The same with each backend: park, nfqueue, migrate, plug", holdsByEach},
		{"unit", "`protect install --unit haproxy`, then `systemctl restart haproxy`: no connect is refused", holdsUnit},
		{"published", "`protect --container` while a container with a published port restarts: no connect is refused", holdsPublished},
		{"pools", "Sessions take a ready network and a warm container", claims},
		{"job", "`holdfast run` runs a job with a service", runsJob},
		{"pull", "Pulls are recorded with the bytes that the registry sent, and pulls of other clients are seen", pulls},
		{"gc", "`gc run` on a full disk removes unused images only", collects},
		{"doctor", "The doctor names a throttled container within 12 s", names},
		{"drills", "The doctor names the cause of each of its drills within 12 s", findsDrills},
		{"clock", "The clock is set an hour forward and back: sessions stay", survivesClock},
		{"full-disk", "`/var` is full: sessions stay, a boot ends with an error, and boots work when there is space", survivesFullDisk},
		{"swap", "A sleeping session is moved to swap space, and wakes with its memory; `swapoff` keeps it", sleepsInSwap},
		{"oomd", "systemd-oomd ends a container under memory pressure: only its session ends, and the next request boots it", outlivesOomd},
		{"hang", "The engine hangs for 30 s: sessions are served, and a boot waits", outlivesHang},
		{"stopped", "A session boots beside 100 stopped containers, and `gc run` removes them", startsAmongMany},
		{"engine", "The engine restarts: the next request reaches the session", survivesEngine},
		{"gvisor", "A session under gVisor is saved to disk, and resumes with its memory", resumes},
		{"sigterm", "SIGTERM drains the node", drainsOnSignal},
		{"power-off", "Power-off drains; after the next boot nothing is left and sessions boot", survivesPowerOff},
		{"drain", "A drain kills 50 sessions while the engine is paused", drainsMany},
		{"engine-upgrade", "The engine is upgraded to the newest: the next request reaches the session", survivesEngineUpgrade}, // last: the column names the old one
	}
}

// isServed requests a session, and uses its terminal and a command in its container.
func isServed(h *host) {
	s := h.served("alice")
	if s.State != holdfast.Ready {
		h.Errorf("the session is %s", s.State)
	}
	if out := h.run("holdfast session exec alice -- echo hello"); out != "hello\n" {
		h.Errorf("session exec printed %q", out)
	}
	c, _, err := websocket.Dial(h.Context(), "http://127.0.0.1:7070/s/alice/ws?rows=24&cols=80", &websocket.DialOptions{HTTPClient: h.client()})
	if err != nil {
		h.Fatalf("open the terminal: %v", err)
	}
	defer c.CloseNow()
	if err := c.Write(h.Context(), websocket.MessageBinary, []byte("echo $((6*7))answer\n")); err != nil {
		h.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(h.Context(), patience)
	defer cancel()
	for all := ""; !strings.Contains(all, "42answer"); {
		_, text, err := c.Read(ctx)
		if err != nil {
			h.Fatalf("the terminal: %v after %q", err, all)
		}
		all += string(text)
	}
}

// survivesRestart restarts the agent.
func survivesRestart(h *host) {
	before := h.served("alice")
	h.run("systemctl restart holdfast")
	h.isSame(before)
}

// survivesKill makes the kernel kill all processes of the agent's unit, with the guardian.
// systemd starts the agent again.
func survivesKill(h *host) {
	before := h.served("alice")
	pid := h.run("systemctl show -P MainPID holdfast")
	h.run("echo 1 >/sys/fs/cgroup$(systemctl show -P ControlGroup holdfast)/cgroup.kill")
	h.awaited("systemd starts the agent again", fmt.Sprintf("test $(systemctl show -P MainPID holdfast) != %s; systemctl is-active -q holdfast; holdfast session ls", strings.TrimSpace(pid)))
	h.isSame(before)
}

// survivesUpgrade installs the next package while clients connect.
func survivesUpgrade(h *host) {
	before := h.served("alice")
	stop := h.knocking("http://127.0.0.1:7070/s/alice/")
	out := h.run("apt-get install -y ./next/holdfast_*.deb")
	stop(out)
	if got := h.run("holdfast version"); strings.Count(got, "v1.1.0") != 2 {
		h.Errorf("after the upgrade program and agent are %s\n%s", got, out)
	}
	h.isSame(before)
}

// claims starts a session with a ready network, and one on a warm container.
func claims(h *host) {
	h.configure(template(`name: quick, image: "testserver:latest", warm: 1, ready: {timeout: 10m}`))
	metric := func(line string) string {
		return "curl -sS http://127.0.0.1:7071/metrics | grep -x '" + line + "'"
	}
	networks := !h.cell.containerd && !h.cell.remaps // on containerd Holdfast itself makes all networks
	if networks {
		h.awaited("networks are ready", metric("holdfast_networks_ready 4"))
	}
	h.awaited("a container is warm", metric(`holdfast_warm_ready{template="quick"} 1`))
	h.run("holdfast session start bob; holdfast session start carol --template quick")
	if networks {
		h.awaited("a network was claimed", metric(`holdfast_network_claims_total{outcome="joined"} [1-9]`))
	}
	h.awaited("a warm container was claimed", metric(`holdfast_warm_claims_total{outcome="warm",template="quick"} 1`))
	h.run("holdfast session stop bob; holdfast session stop carol")
	if h.cell.remaps {
		h.impossible("Ready networks: the engine remaps user ids, so sessions get networks of the engine's; see pools.md. Warm containers work")
	}
}

// runsJob runs a step that requests a page of a service by its name.
func runsJob(h *host) {
	h.write("job.yaml", []byte(`images:
  - image: holdfast-demo:latest
    env: {GREETING: hello}
  - image: holdfast-demo:latest
    name: web
    command: [sh, -c, "mkdir /www && echo I am web > /www/index.html && exec httpd -f -p 80 -h /www"]
    ready: {port: 80, http: /, timeout: 5m}
steps:
  - run: |
      echo $GREETING
      wget -qO- http://web/
`))
	out := h.run("holdfast run -f job.yaml 2>&1")
	if !strings.Contains(out, "hello\n") || !strings.Contains(out, "I am web\n") {
		h.Errorf("the job printed\n%s", out)
	}
	if left := h.run(h.listed("holdfast.job")); left != "" {
		h.Errorf("the job has left %s", left)
	}
}

// collects lowers the marks below the disk's use, so that rules with pressure apply, and
// removes unused images.
func collects(h *host) {
	for n := range 3 {
		image, err := lab.Busybox()
		if err != nil {
			h.Fatal(err)
		}
		image.Ref, image.Env = fmt.Sprintf("ci/app:%d", n), []string{fmt.Sprintf("N=%d", n)}
		h.load(image)
	}
	h.configure(`sed -i 's/^  high: 85%/  high: 2%/; s/^  low: 75%/  low: 1%/; s/^  min_age: 1h/  min_age: 1s/' /etc/holdfast/holdfast.yaml`)
	// On containerd all images count as used until the agent has begun to watch.
	h.awaited("the images are planned", "holdfast gc plan; test $(holdfast gc plan | grep -c ci/app:) = 3")
	out := h.run("holdfast gc run")
	images := h.run(h.images())
	if strings.Contains(images, "ci/app") || !strings.Contains(images, "holdfast-demo:latest") {
		h.Errorf("the images are\n%s\n%s", images, out)
	}
}

// survivesEngine restarts the engine beside a session.
func survivesEngine(h *host) {
	before := h.served("alice")
	h.run("systemctl restart " + h.unit())
	h.keeps(before)
}

// survivesEngineUpgrade replaces Debian's engine by the newest one, with the same data.
func survivesEngineUpgrade(h *host) {
	before := h.served("alice")
	old := h.dockerVersion()
	h.moby()
	h.replace("containerd", "/opt/moby/containerd")
	h.replace("docker", "/opt/moby/dockerd -H fd:// --containerd=/run/containerd/containerd.sock")
	h.run("systemctl daemon-reload; systemctl start containerd docker")
	if now := h.dockerVersion(); now == old {
		h.Errorf("the engine is %s before and after the upgrade", now)
	}
	h.keeps(before)
	h.run("holdfast session start heidi; holdfast session exec heidi -- true; holdfast session stop heidi")
	if h.cell.keeps { // the new engine ends containers that the old one started
		h.run("holdfast session stop alice")
		h.nothingRuns()
	}
}

// keeps checks that a session is served after a restart of the engine.
func (h *host) keeps(before api.Session) {
	h.Helper()
	if h.cell.keeps {
		h.isSame(before)
		return
	}
	h.awaited("the session is served", "curl -sSf -o /dev/null http://127.0.0.1:7070/s/alice/")
	if after := h.served("alice"); after.ContainerID == before.ContainerID || after.Epoch <= before.Epoch {
		h.Errorf("the engine has ended the container, and the session was %+v and is %+v", before, after)
	}
}

// drainsOnSignal ends the agent by SIGTERM, which also ends the sessions.
func drainsOnSignal(h *host) {
	h.served("alice")
	h.run("kill -TERM $(systemctl show -P MainPID holdfast)")
	h.awaited("the agent ends", "! systemctl is-active -q holdfast")
	h.nothingRuns()
	h.run("systemctl start holdfast")
	h.served("alice")
}

// drainsMany drains fifty sessions.
func drainsMany(h *host) {
	const many = 50
	var group errgroup.Group
	group.SetLimit(8)
	for i := range many {
		group.Go(func() error { return h.get(fmt.Sprintf("http://127.0.0.1:7070/s/many-%d/", i)) })
	}
	if err := group.Wait(); err != nil {
		h.Fatal(err)
	}
	var report holdfast.DrainReport
	h.json(&report, "holdfast drain --budget 10m --json")
	paused := slices.ContainsFunc(report.Steps, func(s holdfast.Step) bool { return s.Name == "kill: pause" && s.Count > 0 })
	if report.Owned < many || report.Dead < report.Owned || report.Released != report.Owned || len(report.Left) > 0 || !paused {
		h.Errorf("drained: %+v", report)
	}
	h.Logf("%d sessions drained in %v: %v", report.Released, report.Took, report.Steps)
	h.nothingRuns()
	h.run("holdfast node uncordon host")
	h.served("alice")
}

// survivesPowerOff switches the machine off and on.
func survivesPowerOff(h *host) {
	before := h.served("alice")
	if err := h.PowerOff(h.Context()); err != nil {
		h.Fatal(err)
	}
	if err := h.Boot(h.Context()); err != nil {
		h.Fatal(err)
	}
	if log := h.run("journalctl -b -1 -o cat -u holdfast-drain"); !strings.Contains(log, "1 session released") {
		h.Errorf("the journal of the power-off says\n%s", log)
	}
	h.nothingRuns()
	h.awaited("the session is served", "curl -sSf -o /dev/null http://127.0.0.1:7070/s/alice/")
	if after := h.served("alice"); after.Epoch <= before.Epoch {
		h.Errorf("the session was %+v and is %+v", before, after)
	}
	if failed := h.run("systemctl --failed --plain --no-legend"); failed != "" {
		h.Errorf("units have failed:\n%s", failed)
	}
}

// nothingRuns checks that the engine has no container of a session, running or stopped.
func (h *host) nothingRuns() {
	h.Helper()
	h.awaited("the sessions' containers are gone", `test -z "$(`+h.listed("holdfast.session")+`)"`)
}

// unit returns the engine's unit.
func (h *host) unit() string {
	if h.cell.containerd {
		return "containerd"
	}
	return "docker"
}

// listed returns a command that lists the containers with a label.
func (h *host) listed(label string) string {
	if h.cell.containerd {
		name, value, found := strings.Cut(label, "=")
		filter := fmt.Sprintf("labels.\"%s\"", name)
		if found {
			filter += "==" + value
		}
		return "ctr -n holdfast containers ls -q '" + filter + "'"
	}
	return "docker ps -aq --filter label=" + label
}

// images returns a command that lists the names of images.
func (h *host) images() string {
	if h.cell.containerd {
		return "ctr -n holdfast images ls -q"
	}
	return "docker images --format '{{.Repository}}:{{.Tag}}'"
}

// get sends a request over a new connection.
func (h *host) get(url string) error {
	res, err := h.client().Get(url)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err == nil && res.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s: %s", url, res.Status, text)
	}
	return err
}

// knocking opens connections until stop is called. stop reports refused ones with the output
// of a command.
func (h *host) knocking(url string) (stop func(output string)) {
	quit, done := make(chan struct{}), make(chan struct{})
	var asked, failed int
	var last error
	go func() {
		defer close(done)
		for {
			select {
			case <-quit:
				return
			case <-time.After(5 * time.Millisecond):
			}
			asked++
			if err := h.get(url); err != nil {
				failed, last = failed+1, err
			}
		}
	}()
	return func(output string) {
		h.Helper()
		close(quit)
		<-done
		h.Logf("%d connects, %d failed", asked, failed)
		if failed > 0 || asked < 10 {
			h.Errorf("%d of %d connects failed, at last: %v\n%s", failed, asked, last, output)
		}
	}
}
