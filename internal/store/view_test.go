package store

import (
	"fmt"
	"testing"

	"holdfast"
)

func TestListsRememberTheLastFew(t *testing.T) {
	owners := func(n int) []holdfast.Owner {
		out := make([]holdfast.Owner, n)
		for i := range out {
			out[i].Key = holdfast.SessionKey(fmt.Sprint(i))
		}
		return out
	}
	for name, c := range map[string]struct{ records, lists, want int }{
		"few records":      {1, 3, 3},
		"as many as it is": {1, maxLists, maxLists},
		"more lists":       {1, maxLists + 5, maxLists},
		"long lists":       {maxRecords / 2, 5, 3}, // the last, and half of maxRecords twice
		"one too long":     {maxRecords + 1, 3, 1},
	} {
		var l Lists
		records := owners(c.records)
		for at := range c.lists {
			l.Add(records, holdfast.Revision(at+1))
		}
		for at := 1; at <= c.lists; at++ {
			_, ok := l.View(holdfast.Revision(at))
			if want := at > c.lists-c.want; ok != want {
				t.Errorf("%s: list %d of %d is remembered: %v, want %v", name, at, c.lists, ok, want)
			}
		}
	}
}
