package fleet

import (
	"strings"
	"testing"
	"time"

	"holdfast"
	"holdfast/test/check"
)

// Two lives of one epoch are no overlap if the agent has repeated the restore, and they were not
// alive at the same time.
func TestRepeatedRestores(t *testing.T) {
	repeated := map[string]bool{}
	err := readRepeated(strings.NewReader(`time=2026-11-27T19:36:07.770Z level=INFO msg="session ready" session=b epoch=7
time=2026-11-27T19:36:08.770Z level=WARN msg="the engine failed while it restored a session; the restore is repeated" session=a epoch=5
`), repeated)
	if err != nil || len(repeated) != 1 || !repeated["a 5"] {
		t.Fatalf("%v, %v", repeated, err)
	}
	life := func(key holdfast.SessionKey, epoch holdfast.Epoch, first, last time.Duration) check.Life {
		return check.Life{Key: key, Epoch: epoch, First: first, Last: last, Ticks: 2}
	}
	_, err = check.Overlap([]check.Life{
		life("a", 5, 1*time.Second, 2*time.Second), life("a", 5, 3*time.Second, 4*time.Second),
		life("b", 7, 1*time.Second, 2*time.Second), life("b", 7, 3*time.Second, 4*time.Second),
	})
	two, ok := err.(*check.OverlapError)
	if !ok || withoutRepeated(two, repeated) != 1 || len(two.Pairs) != 1 || two.Pairs[0].New.Key != "b" {
		t.Errorf("%v", err)
	}
	_, err = check.Overlap([]check.Life{life("a", 5, 1*time.Second, 3*time.Second), life("a", 5, 2*time.Second, 4*time.Second)})
	if two, ok := err.(*check.OverlapError); !ok || withoutRepeated(two, repeated) != 0 || len(two.Pairs) != 1 {
		t.Errorf("%v", err)
	}
}
