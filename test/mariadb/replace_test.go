package mariadb

import (
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"holdfast"
	"holdfast/internal/control/api/client"
	"holdfast/test/lab/labtest"
)

const (
	recovery   = "InnoDB: Starting crash recovery from checkpoint"
	serving    = "mariadbd: ready for connections"
	rolledBack = "must be rolled back" // 1 transaction(s) which must be rolled back in total …
)

// Two databases are replaced repeatedly while clients write to them. Holdfast ends a container
// with SIGKILL, so each replacement is a crash for the database. Afterwards all acknowledged
// rows are there, and no uncommitted row.
func TestReplacedUnderLoad(t *testing.T) {
	n := startNode(t)
	agent, err := client.New(client.Options{Socket: n.socket})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(agent.Close)

	keys := []holdfast.SessionKey{"orders", "stock"}
	var loads []*load
	for _, key := range keys {
		n.database(string(key))
		n.must(n.binary, "session", "start", string(key))
		loads = append(loads, write(t, agent, key, 2))
	}
	var last holdfast.Epoch
	replacements := 2
	if labtest.Long() {
		replacements = 10
	}
	for round := range replacements {
		for _, l := range loads {
			l.begin(row{-1, round})
			l.await(100)
		}
		n.replace(keys...)
		for _, key := range keys {
			s, err := n.session(string(key))
			if err != nil || s.State != holdfast.Ready || s.Epoch <= last {
				t.Fatalf("replaced, %s is %+v, %v; an epoch before was %d", key, s, err, last)
			}
			if s.Boot.Init <= 0 || s.Boot.Start <= 0 || s.Boot.Ready <= 0 {
				t.Errorf("%s: its record has no init, start or ready phase: %+v", key, s.Boot)
			}
			if key == keys[len(keys)-1] {
				last = s.Epoch
			}
		}
	}
	for _, l := range loads {
		l.await(100)
		l.check()
	}
	for _, key := range keys {
		n.checkLog(string(key), replacements)
	}
}

// replace replaces the sessions and checks the report.
func (n *node) replace(keys ...holdfast.SessionKey) {
	n.t.Helper()
	args := []string{"session", "replace", "--json"}
	for _, key := range keys {
		args = append(args, string(key))
	}
	var report holdfast.ReplaceReport
	if err := json.Unmarshal([]byte(n.must(n.binary, args...)), &report); err != nil {
		n.t.Fatal(err)
	}
	if len(report.Rows) != len(keys) || report.Failed() > 0 {
		n.t.Fatalf("replacing %v: %+v", keys, report)
	}
	for _, row := range report.Rows {
		n.t.Logf("%s: init %v, start %v, ready %v, total %v", row.Key, row.Boot.Init, row.Boot.Start, row.Boot.Ready, row.Total)
	}
}

// checkLog checks the logs of all servers of a database. A server locks its files, so its log
// proves that there was no second server at the same time.
func (n *node) checkLog(key string, replacements int) {
	n.t.Helper()
	log := filepath.Join(n.srv, key, "error.log")
	text := n.read(log)
	for what, want := range map[string]int{serving: replacements + 1, recovery: replacements} {
		if got := strings.Count(text, what); got != want {
			n.t.Errorf("%s: the log has %q %d times, want %d", key, what, got, want)
		}
	}
	// A long rollback continues in the background, and the server logs that.
	if got := strings.Count(text, rolledBack); got < replacements {
		n.t.Errorf("%s: the log has %q %d times, want %d at least", key, rolledBack, got, replacements)
	}
	if line, is := locked(text); is {
		n.t.Errorf("%s: two servers met in one data directory: %s", key, line)
	}
	// The check can fail: here a second server runs.
	second := strings.TrimSpace(n.must("docker", "run", "--detach", "--volume", filepath.Join(n.srv, key)+":/data", "mariadb:local"))
	defer n.must("docker", "rm", "--force", second)
	for end := time.Now().Add(time.Minute); ; time.Sleep(50 * time.Millisecond) {
		if line, is := locked(n.read(log)); is {
			n.t.Logf("a second server says: %s", line)
			return
		}
		if time.Now().After(end) {
			n.t.Fatalf("a second server found no lock within a minute:\n%s", n.read(log)[len(text):])
		}
	}
}

// locked returns the line of a server whose files were in use: EAGAIN of fcntl(2) is 11.
func locked(log string) (string, bool) {
	for line := range strings.Lines(log) {
		if strings.Contains(line, "lock") && strings.Contains(line, "error: 11") {
			return strings.TrimSpace(line), true
		}
	}
	return "", false
}
