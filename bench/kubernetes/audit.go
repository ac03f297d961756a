package kubernetes

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"time"
)

// auditLog is the audit log of the API server.
const auditLog = "audit.log"

// tally counts the requests of agents in a period.
type tally struct {
	kinds map[string]int // "patch leases" → requests of the simulated agents
	nodes map[string]int // requests by the node of the agent
	real  int            // requests of the real agent
	bad   int            // requests answered with an error
	lists []string       // URIs of lists and watches, which agents do not need
}

// all returns the number of requests of the simulated agents.
func (t tally) all() int {
	n := 0
	for _, k := range t.kinds {
		n += k
	}
	return n
}

// entry has the fields of an audit event (audit.k8s.io/v1) that are counted.
type entry struct {
	Verb string `json:"verb"`
	URI  string `json:"requestURI"`
	User struct {
		Name  string              `json:"username"`
		Extra map[string][]string `json:"extra"`
	} `json:"user"`
	Object struct {
		Resource    string `json:"resource"`
		Subresource string `json:"subresource"`
	} `json:"objectRef"`
	Status struct {
		Code int `json:"code"`
	} `json:"responseStatus"`
	At time.Time `json:"requestReceivedTimestamp"`
}

// count counts the requests of the log between two times.
func (c *cluster) count(from, to time.Time) (tally, error) {
	t := tally{kinds: make(map[string]int), nodes: make(map[string]int)}
	f, err := os.Open(c.file(auditLog))
	if err != nil {
		return t, err
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var e entry
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			return t, fmt.Errorf("the audit log: %w", err)
		}
		if e.User.Name != account || e.At.Before(from) || !e.At.Before(to) {
			continue
		}
		t.take(e)
	}
	return t, lines.Err()
}

func (t *tally) take(e entry) {
	on := ""
	if n := e.User.Extra["authentication.kubernetes.io/node-name"]; len(n) > 0 {
		on = n[0]
	}
	if e.Status.Code >= 400 {
		t.bad++
	}
	if e.Verb == "list" || e.Verb == "watch" {
		t.lists = append(t.lists, e.URI)
	}
	if on == realNode {
		t.real++
		return
	}
	what := e.Object.Resource
	if e.Object.Subresource != "" {
		what += "/" + e.Object.Subresource
	}
	t.kinds[e.Verb+" "+what]++
	t.nodes[on]++
}
