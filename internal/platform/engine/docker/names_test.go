package docker

import (
	"slices"
	"testing"
)

// TestNamesOf: the digest that the containerd image store adds for a tag is no name.
func TestNamesOf(t *testing.T) {
	const id, other = "sha256:aa", "sha256:bb"
	for _, c := range []struct {
		id                  string
		tags, digests, want []string
	}{
		{id, []string{"app:1", "host:5000/x/app:2"}, []string{"app@" + id, "host:5000/x/app@" + id}, []string{"app:1", "host:5000/x/app:2"}},
		{id, []string{"app:1"}, []string{"other@" + id, "app@" + other}, []string{"app:1", "other@" + id, "app@" + other}},
		{id, nil, []string{"app@" + id}, []string{"app@" + id}},
		{id, []string{"<none>:<none>"}, []string{"<none>@<none>"}, nil},
	} {
		if got := namesOf(c.id, c.tags, c.digests); !slices.Equal(got, c.want) {
			t.Errorf("%v, %v: %v, want %v", c.tags, c.digests, got, c.want)
		}
	}
}
