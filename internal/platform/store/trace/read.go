package trace

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"time"

	"holdfast"
	"holdfast/internal/platform/store"
)

// Call is one call that a node made.
type Call struct {
	Node       holdfast.NodeID
	Op         string
	Start, End time.Duration // since the machine booted; End is 0 if no answer came
	Lease      store.LeaseID // of a grant the new lease
	About      []Record      // the records in the request
	Result     string        // Unknown if no answer came
	Got        []Record      // the records in the answer; of a release the deleted keys
}

// maxLine bounds a line: a release names a record in some 100 bytes, and a node
// has thousands.
const maxLine = 16 << 20

// Read returns the calls of a file, in the order in which they began.
func Read(path string) ([]Call, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("read a store's trace: %w", err)
	}
	defer f.Close()
	type id struct{ life, call int64 }
	var calls []Call
	open := map[id]int{}
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, maxLine)
	for n := 1; lines.Scan(); n++ {
		var l line
		if err := json.Unmarshal(lines.Bytes(), &l); err != nil {
			return nil, fmt.Errorf("read a store's trace: %s: line %d: %w", path, n, err)
		}
		key := id{l.Life, l.Call}
		if l.Op != "" {
			open[key] = len(calls)
			calls = append(calls, Call{Node: l.Node, Op: l.Op, Start: time.Duration(l.At), Lease: l.Lease, About: l.Records, Result: Unknown})
			continue
		}
		i, ok := open[key]
		if !ok {
			return nil, fmt.Errorf("read a store's trace: %s: line %d answers no call", path, n)
		}
		delete(open, key)
		c := &calls[i]
		c.End, c.Result, c.Got = time.Duration(l.At), l.Result, l.Records
		if l.Lease != 0 {
			c.Lease = l.Lease
		}
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("read a store's trace: %s: %w", path, err)
	}
	return calls, nil
}
