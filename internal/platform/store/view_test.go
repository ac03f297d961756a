package store

import (
	"fmt"
	"testing"

	"holdfast"
)

// TestListsAreBounded: the number of lists is bounded, and so is the number of
// records in long lists; the newest list always stays.
func TestListsAreBounded(t *testing.T) {
	for _, c := range []struct{ records, lists, want int }{
		{1, maxLists + 4, maxLists},
		{maxListed / 4, 5, 4},
		{maxListed + 1, 2, 1},
	} {
		owners := make([]holdfast.Owner, c.records)
		for i := range owners {
			owners[i].Key = holdfast.SessionKey(fmt.Sprint("k", i))
		}
		var l Lists
		last := holdfast.Revision(c.lists)
		for at := range last {
			l.Add(owners, at+1)
		}
		kept := 0
		for at := range last {
			if _, ok := l.View(at + 1); ok {
				kept++
			}
		}
		view, ok := l.View(last)
		if kept != c.want || !ok || len(view) != c.records {
			t.Errorf("of lists of %d records %d are kept, want %d with the newest", c.records, kept, c.want)
		}
	}
}
