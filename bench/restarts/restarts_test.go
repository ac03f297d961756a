package restarts

import (
	"context"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// Each server's script counts what its load tool wrote, and knows each part that the bench
// calls.
func TestTallies(t *testing.T) {
	const wrkRun = "  Thread Stats   Avg      Stdev     Max   +/- Stdev\n    Latency     5.71ms    9.45ms   1.20s   90.25%\n" +
		"  2654 requests in 2.01s, 497.62KB read\n  Socket errors: connect 1, read 20, write 300, timeout 4000\n  Non-2xx or 3xx responses: 5\n"
	for script, c := range map[string]struct{ file, out, want string }{
		"node":     {"load.out", wrkRun + wrkRun, "5298 8653 1200"},
		"redis":    {"load.out", "\"test\",\"rps\",\"max_latency_ms\"\n\"GET\",\"9000.0\",\"21.215\"\n", "2000 1 21.215"},
		"mariadb":  {"load.out", "    total number of events:              384\n         max:                                   22.52\n", "384 1 22.52"},
		"rabbitmq": {"load.out", "ok 12\nfailed 700\nok 30\n", "2 1 30"},
		"postgres": {"transactions.1", "0 1 1500 0 1700000000 1 2\n1 1 823096 0 1700000000 1 2\n", "2 1 823.096"},
	} {
		text, err := server{script: script}.text()
		if err != nil {
			t.Fatal(err)
		}
		dir := t.TempDir()
		for name, text := range map[string]string{"server.sh": text, c.file: c.out,
			"load.err": "pgbench: error: connection to server at \"127.0.0.1\", port 1 failed: Connection refused\n"} {
			if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		cmd := exec.Command("bash", "-c", `set -- :; . "$DIR/server.sh"; gave_up=1; tally`)
		cmd.Env = append(os.Environ(), "DIR="+dir, "HOST=127.0.0.1", "PORT=1", "RUN=1")
		got, err := cmd.CombinedOutput()
		if strings.TrimSpace(string(got)) != c.want || err != nil {
			t.Errorf("%s: %q, %v, want %q", script, got, err, c.want)
		}
		var tool Tool
		if err := tool.add(string(got)); err != nil {
			t.Error(err)
		}
	}
}

func TestAskAMQP(t *testing.T) {
	for answer, want := range map[string]bool{"\x01\x00\x00\x00\x00\x00\x01": true, "AMQP\x00\x00\x09\x01": false, "": false} {
		err := askAMQP(t.Context(), func(context.Context) (net.Conn, error) {
			client, server := net.Pipe()
			go func() {
				defer server.Close()
				_, _ = server.Read(make([]byte, 8))
				_, _ = server.Write([]byte(answer))
			}()
			return client, nil
		})
		if (err == nil) != want {
			t.Errorf("%q: %v", answer, err)
		}
	}
}

// The page names a server that did not run, and has the cells of the others.
func TestPage(t *testing.T) {
	path := filepath.Join(t.TempDir(), "page.md")
	if err := os.WriteFile(path, []byte("before\n"+pageBegin+"old\n"+pageEnd+"after\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	d := Details{Rounds: 3, Load: []float64{1, 2}, Servers: []Server{
		{Name: "Envoy", Missing: "envoy"},
		{Name: "nginx", Version: "nginx/1.22.1", Tool: wrk, Reload: "SIGHUP", Rows: []Row{{Change: reload,
			Without: Cell{Clients: Clients{Asked: 9, Failed: 9}, Tool: Tool{Requests: 5, Errors: 2}}, With: Cell{Clients: Clients{Asked: 8, Longest: 41.6}}}}},
	}}
	r := d.result()
	if r.Failed != 0 || r.Score != 10 {
		t.Errorf("failed %d, score %v", r.Failed, r.Score)
	}
	if err := WritePage(path, r); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"before\n", "after\n", "| Envoy | not run: envoy is not installed |",
		"| nginx | reload: SIGHUP | 2 of 7 | 9 of 9 | – | 0 of 0 | 0 of 8 | 42 |", "| nginx | nginx/1.22.1 | wrk, Connection: close |"} {
		if !strings.Contains(string(b), want) {
			t.Errorf("the page has no %q:\n%s", want, b)
		}
	}
}
