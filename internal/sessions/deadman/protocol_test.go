package deadman

import (
	"encoding/json"
	"strings"
	"testing"

	"holdfast/internal/sessions/kill"
)

// No request can make the deadman search for control groups by an arbitrary word, or
// use memory without bound.
func FuzzRequest(f *testing.F) {
	for _, s := range []string{
		`{"op":"hello","seq":1,"version":1}`, `{"op":"expect","container":{"id":"0123456789ab"}}`,
		`{"op":"hold","container":{"id":"0123456789ab","pid":2,"start":1}}`, `{"op":"forget","ids":["a"]}`, `{"op":"extend","deadline":1}`, `[]`, `{"op":1}`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := parseRequest(b)
		if err != nil || r.check() != nil {
			return
		}
		c := r.Container
		if (r.Op == opExpect || r.Op == opHold) && (!kill.Searchable(c.ID) || len(c.ID) > maxIDLen || len(c.Name) > maxNameLen) {
			t.Errorf("taken: %+v", *c)
		}
		if len(r.IDs) > batch && r.Op == opForget {
			t.Errorf("%d ids", len(r.IDs))
		}
	})
}

// The longest requests and replies fit into a message.
func TestMessagesFit(t *testing.T) {
	c := container{ID: strings.Repeat("a", maxIDLen), Name: strings.Repeat("n", maxNameLen), Pid: 1 << 22, Start: 1 << 63}
	var all []container
	var ids []string
	for range batch {
		all, ids = append(all, c), append(ids, c.ID)
	}
	fired := Fired{Deadline: 1 << 62, At: 1 << 62}
	for range 2 * maxNames {
		fired.name(c.Name)
	}
	for name, m := range map[string]any{"list": reply{List: all}, "forget": request{IDs: ids}, "hello": reply{Status: &status{}, Fired: &fired}} {
		b, err := json.Marshal(m)
		if err != nil || len(b) > maxMessage {
			t.Errorf("%s: %d bytes, %v", name, len(b), err)
		}
	}
}
