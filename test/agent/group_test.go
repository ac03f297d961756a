package agent

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"holdfast"
	"holdfast/internal/control/api"
	"holdfast/test/lab/echoserver"
	"holdfast/test/lab/labtest"
	"holdfast/test/poll"
)

// gates is a directory with a file for each thing that replicas wait for: the init step
// and the command caught_up look for init-KEY and caught-up-KEY, the snapshot for snap-KEY.
type gates struct {
	t   *testing.T
	dir string
}

func newGates(t *testing.T, open ...string) gates {
	t.Helper()
	g := gates{t, t.TempDir()}
	if err := os.Chmod(g.dir, 0o755); err != nil {
		t.Fatal(err)
	}
	g.open(open...)
	return g
}

func (g gates) open(names ...string) {
	g.t.Helper()
	for _, name := range names {
		if err := os.WriteFile(filepath.Join(g.dir, name), nil, 0o644); err != nil {
			g.t.Fatal(err)
		}
	}
}

func (g gates) shut(name string) {
	g.t.Helper()
	if err := os.Remove(filepath.Join(g.dir, name)); err != nil {
		g.t.Fatal(err)
	}
}

// template returns a template with replicas. more is additional YAML.
func (g gates) template(name string, replicas int, more string) string {
	g.t.Helper()
	busybox, err := exec.LookPath("busybox") // a static program, as for the image of that name
	if err != nil {
		g.t.Fatal(err)
	}
	return fmt.Sprintf(`
  - name: %s
    image: %s
    port: 8080
    replicas: %d
    ready: {http: /healthz, timeout: 2m}
    mounts:
      - {type: bind, source: %s, target: /gates, read_only: true}
      - {type: bind, source: %s, target: /busybox, read_only: true}
%s`, name, labtest.TestServer, replicas, g.dir, busybox, more)
}

const caughtUp = `    caught_up: {command: [/busybox, sh, -c, "test -e /gates/caught-up-{key} || { echo far behind; exit 1; }"], timeout: %s}
`

// rotation returns the states of a group's replicas that have a session.
func (h *host) rotation(group string) map[string]holdfast.ReplicaState {
	h.t.Helper()
	out := map[string]holdfast.ReplicaState{}
	for _, s := range h.sessions() {
		if s.Group == group {
			out[string(s.Key)] = s.Rotation
		}
	}
	return out
}

// serving waits until exactly these replicas run, and serve.
func (h *host) serving(group string, keys ...string) {
	h.t.Helper()
	poll.Until(h.t, fmt.Sprintf("group %s is %v", group, keys), func() bool {
		now := h.rotation(group)
		for _, key := range keys {
			if now[key] != holdfast.ReplicaServing {
				return false
			}
		}
		return len(now) == len(keys)
	})
}

// readers request a session until stop, and count answers by the replica that gave them.
type readers struct {
	wg     sync.WaitGroup
	done   chan struct{}
	mu     sync.Mutex
	seen   map[string]int
	errors []string
}

// read starts readers of a group at these hosts, one with POST, which is not sent twice.
func read(group string, hosts ...*host) *readers {
	r := &readers{done: make(chan struct{}), seen: map[string]int{}}
	for _, h := range hosts {
		for _, method := range []string{http.MethodGet, http.MethodPost} {
			r.wg.Go(func() { r.run(method, "http://"+h.gateway+"/s/"+group+"/", nil) })
		}
	}
	return r
}

func (r *readers) run(method, url string, through http.RoundTripper) {
	client := http.Client{Timeout: time.Minute, Transport: through}
	defer client.CloseIdleConnections()
	for {
		select {
		case <-r.done:
			return
		case <-time.After(2 * time.Millisecond):
		}
		session, err := askOnce(&client, method, url)
		r.mu.Lock()
		if err != nil {
			r.errors = append(r.errors, err.Error())
		} else {
			r.seen[session]++
		}
		r.mu.Unlock()
	}
}

func askOnce(client *http.Client, method, url string) (string, error) {
	req, err := http.NewRequest(method, url, strings.NewReader(""))
	if err != nil {
		return "", err
	}
	res, err := client.Do(req)
	if err != nil {
		return "", err
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	var reply echoserver.Reply
	if err == nil {
		err = json.Unmarshal(body, &reply)
	}
	if err != nil || res.StatusCode != http.StatusOK {
		return "", fmt.Errorf("%s: %v: %.200s", res.Status, err, body)
	}
	return reply.Session, nil
}

// answer waits until at least n requests are answered from now on, and each of the replicas
// has answered. Others may not have.
func (r *readers) answer(t *testing.T, n int, replicas ...string) {
	t.Helper()
	r.mu.Lock()
	r.seen = map[string]int{}
	r.mu.Unlock()
	poll.Until(t, fmt.Sprintf("%v answer %d requests", replicas, n), func() bool {
		r.mu.Lock()
		defer r.mu.Unlock()
		all := 0
		for key, count := range r.seen {
			if all += count; !slices.Contains(replicas, key) {
				t.Fatalf("%s answers, beside %v", key, replicas)
			}
		}
		return all >= n && len(r.seen) == len(replicas)
	})
}

// stop ends the readers, none of which may have had an error.
func (r *readers) stop(t *testing.T) {
	t.Helper()
	close(r.done)
	r.wg.Wait()
	if len(r.errors) > 0 {
		t.Errorf("%d requests failed, the first: %s", len(r.errors), r.errors[0])
	}
}

// replacing starts a command that replaces a group, and returns a function that waits for
// its end.
func (h *host) replacing(args ...string) (wait func() result) {
	out := make(chan result, 1)
	go func() { out <- h.cliFor(3*time.Minute, append([]string{"session", "replace", "--json"}, args...)...) }()
	return func() result { return <-out }
}

func reportOf(t *testing.T, r result) (report holdfast.ReplaceReport) {
	t.Helper()
	if err := json.Unmarshal([]byte(r.out), &report); err != nil {
		t.Fatalf("%v: %+v", err, r)
	}
	return report
}

// A group's replicas run, share one address, and are replaced one by one: the new one gets
// no request before it has caught up, the old one completes its answers, and no client sees
// an error. A replica that does not catch up is removed, and the old one serves.
func TestGroupIsReplacedNewFirst(t *testing.T) {
	g := newGates(t, "caught-up-store-0", "caught-up-store-1", "caught-up-late-0")
	tcp := labtest.FreePort(t)
	h := newHost(t, "\ntemplates:"+template+
		g.template("store", 2, fmt.Sprintf(caughtUp, "1m")+fmt.Sprintf("    tcp: {listen: %q}\n", tcp))+
		g.template("late", 1, fmt.Sprintf(caughtUp, "2s")))
	h.start()
	h.serving("store", "store-0", "store-1")
	h.serving("late", "late-0")
	clients := read("store", h)
	clients.wg.Go(func() { // a connection for each request, past the gateway's HTTP
		clients.run(http.MethodGet, "http://"+tcp+"/", &http.Transport{DisableKeepAlives: true})
	})
	clients.answer(t, 20, "store-0", "store-1")
	if res, _ := h.get("/s/store-7/"); res.StatusCode != http.StatusNotFound {
		t.Errorf("a replica that does not exist: %s", res.Status)
	}
	wantError(t, h.cli("session", "start", "store-7"), 2, "only the keeper of group store", "start replicas themselves")

	wait := h.replacing("store")
	poll.Until(t, "the new replica catches up", func() bool { return h.rotation("store")["store-2"] == holdfast.ReplicaJoining })
	clients.answer(t, 20, "store-0", "store-1")
	wantError(t, h.cli("session", "replace", "store"), 8, "under way", "--stop")
	long := make(chan string, 1)
	go func() {
		_, body := h.get("/s/store-0/stream?n=30&every=100ms")
		long <- body
	}()
	poll.Until(t, "store-0 has a long answer to give", func() bool {
		return slices.ContainsFunc(h.sessions(), func(s api.Session) bool { return s.Key == "store-0" && s.Connections > 0 })
	})
	g.open("caught-up-store-2")
	report := reportOf(t, wait())
	if n := strings.Count(<-long, "\n"); n != 30 {
		t.Errorf("the old replica ended after %d of 30 lines of an answer", n)
	}
	if len(report.Rows) != 2 || report.Failed()+len(report.Unbegun)+len(report.Gone) != 0 {
		t.Fatalf("%+v", report)
	}
	for i, want := range []struct{ old, key holdfast.SessionKey }{{"store-0", "store-2"}, {"store-1", "store-0"}} {
		r := report.Rows[i]
		if r.Key != want.key || r.Replica == nil || r.Replica.Old != want.old || string(r.To) != h.node || r.Boot.Start <= 0 ||
			r.Replica.CaughtUp <= 0 || r.Replica.Drained <= 0 || r.Replica.Stopped <= 0 || r.Total < r.Replica.CaughtUp+r.Replica.Drained {
			t.Errorf("row %d: %+v, %+v", i, r, r.Replica)
		}
	}
	h.serving("store", "store-0", "store-2")
	clients.answer(t, 20, "store-0", "store-2")
	clients.stop(t)

	clients = read("late", h)
	failed := h.replacing("late")()
	if report := reportOf(t, failed); failed.code != 6 || report.Failed() != 1 || !strings.Contains(report.Rows[0].Error, "late-1 has not caught up in time: far behind") {
		t.Errorf("%+v", failed)
	}
	h.serving("late", "late-0")
	clients.stop(t)
	var past struct {
		Nodes        []struct{ Phases []struct{ Name string } } `json:"nodes"`
		Replacements []holdfast.Replacement                     `json:"replacements"`
	}
	if err := json.Unmarshal([]byte(h.must("session", "replacements", "--json")), &past); err != nil || len(past.Replacements) != 3 || len(past.Nodes) != 1 {
		t.Errorf("%+v, %v", past, err)
	}
	if h.settled(); len(h.running()) != 3 {
		t.Errorf("these run: %v", h.running())
	}
}
