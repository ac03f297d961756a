package fleet

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"slices"

	"holdfast/test/check"
)

// repeatedRestore is an agent's line about a restore during which the engine failed. The agent has
// removed that container, has seen it dead, and restores the image once more under the same claim.
// The container may have run, without a client, while the engine did not answer.
var repeatedRestore = regexp.MustCompile(`msg="the engine failed while it restored a session; the restore is repeated" session=(\S+) epoch=(\d+)`)

// readRepeated adds the claims whose restores were repeated, as "KEY EPOCH", to all.
func readRepeated(log io.Reader, all map[string]bool) error {
	lines := bufio.NewScanner(log)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		if m := repeatedRestore.FindStringSubmatch(lines.Text()); m != nil {
			all[m[1]+" "+m[2]] = true
		}
	}
	return lines.Err()
}

// repeated returns the claims whose restores any agent has repeated.
func (x *experiment) repeated() (map[string]bool, error) {
	all := map[string]bool{}
	for _, m := range x.nodes {
		f, err := os.Open(m.logFile)
		if err == nil {
			err = errors.Join(readRepeated(f, all), f.Close())
		}
		if err != nil {
			return nil, fmt.Errorf("log of node %s: %w", m.id, err)
		}
	}
	return all, nil
}

// withoutRepeated removes pairs of lives that were one after the other under the claim of a
// repeated restore, and returns their number.
func withoutRepeated(two *check.OverlapError, repeated map[string]bool) (n int) {
	before := len(two.Pairs)
	two.Pairs = slices.DeleteFunc(two.Pairs, func(p check.Pair) bool {
		return p.Old.Epoch == p.New.Epoch && p.By == 0 && p.Old.Last < p.New.First && repeated[fmt.Sprintf("%s %d", p.New.Key, p.New.Epoch)]
	})
	return before - len(two.Pairs)
}
