package cli_test

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"holdfast"
	"holdfast/internal/control/api"
	"holdfast/internal/control/api/apitest"
	"holdfast/internal/control/cli"
)

// ofThree is an agent in a fleet of three nodes, one of which does not answer.
type ofThree struct{ *apitest.Backend }

func (b ofThree) Parts() api.Parts {
	p := b.Backend.Parts()
	p.Nodes = b
	return p
}

func (b ofThree) Nodes(ctx context.Context) ([]holdfast.Node, error) {
	all, err := b.Backend.Nodes(ctx)
	return append(all, holdfast.Node{ID: "n2", Trouble: "disk full"}, holdfast.Node{ID: "n3", Draining: true, Trouble: "hot"}), err
}

// toNode sends a node's requests to a server.
type toNode struct{ server *httptest.Server }

func (n toNode) RoundTrip(r *http.Request) (*http.Response, error) {
	r.URL.Host = strings.TrimPrefix(n.server.URL, "http://")
	return n.server.Client().Transport.RoundTrip(r)
}

// The list of past replacements has those of all nodes, compares their figures, and
// names a node that does not answer. The list of nodes shows their troubles.
func TestReplacementsOfAFleet(t *testing.T) {
	rows := func(node holdfast.NodeID, at time.Time, init time.Duration) []holdfast.Replacement {
		return []holdfast.Replacement{{Key: "k-" + holdfast.SessionKey(node), From: "n9", To: node, Started: at, Boot: holdfast.Phases{Init: holdfast.Millis(init)}}}
	}
	n1, n2 := &apitest.Backend{}, &apitest.Backend{Node: "n2"}
	n1.SetHistory(rows("n1", apitest.Began, time.Second))
	n2.SetHistory(rows("n2", apitest.Began.Add(time.Minute), time.Minute))
	far := httptest.NewServer(api.New(n2.Parts(), api.Options{Peer: func(*http.Request) holdfast.NodeID { return "n1" }}))
	defer far.Close()
	near := httptest.NewServer(api.New(ofThree{n1}.Parts(), api.Options{Forward: func(node holdfast.NodeID) (http.RoundTripper, error) {
		if node == "n2" {
			return toNode{far}, nil
		}
		return nil, fmt.Errorf("no connection: %w", os.ErrDeadlineExceeded)
	}}))
	defer near.Close()
	t.Setenv("HOLDFAST_URL", near.URL)
	t.Setenv("HOLDFAST_SOCKET", filepath.Join(t.TempDir(), "none"))
	run := func(args ...string) (string, string) {
		t.Helper()
		var out, errs bytes.Buffer
		if code := cli.Main(t.Context(), args, nil, &out, &errs, testDeps()); code != 0 {
			t.Errorf("%v: exit code %d: %s", args, code, errs.String())
		}
		return out.String(), errs.String()
	}
	out, errs := run("session", "replacements")
	want := `NODE  COUNT  INIT P50  MAX     START P50  MAX  READY P50  MAX  RATIO
n2    1      60.00s    60.00s  -          -    -          -    60.0x init
n1    1      1.00s     1.00s   -          -    -          -    1.0x init

AGE  INSTANCE  FROM  TO  INIT    START  READY  TOTAL  ERROR
1h   k-n2      n9    n2  60.00s  -      -      -      -
1h   k-n1      n9    n1  1.00s   -      -      -      -
`
	if out != want || !strings.HasPrefix(errs, "node n3 is left out: ") {
		t.Errorf("%s%s", out, errs)
	}
	out, _ = run("node", "ls")
	for _, want := range []string{"\nn1    up  ", "\nn2    up, disk full  ", "\nn3    cordoned, hot  "} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
}

// A group's replacement: its progress, and a table with the phases of its replicas. A replica
// that gets no requests is marked in the list.
func TestReplaceGroup(t *testing.T) {
	b := &apitest.Backend{}
	for _, key := range []holdfast.SessionKey{"db-0", "db-1"} {
		if _, err := b.StartSession(t.Context(), key, "db"); err != nil {
			t.Fatal(err)
		}
	}
	b.SetGroups(holdfast.Group{Name: "db", Replicas: []holdfast.Replica{{Key: "db-0", State: holdfast.ReplicaServing}, {Key: "db-1", State: holdfast.ReplicaJoining}}})
	run := runWith(t, b)
	if out, _ := run(0, "session", "ls"); !strings.Contains(out, "\ndb-0  ready            db") || !strings.Contains(out, "\ndb-1  ready (joining)  db") {
		t.Errorf("the list:\n%s", out)
	}
	out, errs := run(0, "session", "replace", "db")
	want := `INSTANCE     FROM  TO  PLACE  DISK    INIT   START  READY  CAUGHT-UP  DRAINED  STOPPED  TOTAL   ERROR
db-0 → db-2  n1    n1  2.0ms  40.00s  5.00s  1.00s  2.00s  38.00s     2.00s    300ms    90.00s  -
1 session replaced in 90.00s
`
	if out != want || !strings.Contains(errs, "db-0 → db-2: catching-up: 12 s behind\n") {
		t.Errorf("%s%s", out, errs)
	}
	if _, errs := run(5, "session", "replace", "db", "--stop"); !strings.Contains(errs, "no replacement is under way") {
		t.Error(errs)
	}
	for _, args := range [][]string{{"--stop"}, {"--all", "--stop"}, {"--all", "--max-unavailable", "1"}, {"db", "--max-unavailable", "17"}, {"db", "--max-unavailable", "1", "--parallel", "2"}} {
		if _, errs := run(2, append([]string{"session", "replace"}, args...)...); !strings.Contains(errs, "\nhint: ") {
			t.Errorf("%v: %s", args, errs)
		}
	}
}

// runWith returns a function that runs a command against b, checks its exit code, and returns
// its output and errors.
func runWith(t *testing.T, b *apitest.Backend) func(code int, args ...string) (string, string) {
	t.Helper()
	s := httptest.NewServer(api.New(b.Parts(), api.Options{Admin: true}))
	t.Cleanup(s.Close)
	t.Setenv("HOLDFAST_URL", s.URL)
	t.Setenv("HOLDFAST_SOCKET", filepath.Join(t.TempDir(), "none"))
	return func(code int, args ...string) (string, string) {
		t.Helper()
		var out, errs bytes.Buffer
		if got := cli.Main(t.Context(), args, nil, &out, &errs, testDeps()); got != code {
			t.Errorf("%v: exit code %d, want %d: %s", args, got, code, errs.String())
		}
		return out.String(), errs.String()
	}
}
