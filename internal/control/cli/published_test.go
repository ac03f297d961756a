package cli

import (
	"slices"
	"testing"

	"holdfast/internal/hosts/protect"
)

// A port on all addresses includes a port that a container publishes on one, and the other way
// round.
func TestWithinPublished(t *testing.T) {
	for _, c := range []struct {
		published string
		given     []string
		want      []string
	}{
		{"127.0.0.1:8080", nil, []string{"127.0.0.1:8080"}},
		{"127.0.0.1:8080", []string{"8080"}, []string{"127.0.0.1:8080"}},
		{"8080", []string{"8080"}, []string{"8080"}},
		{"8080", []string{"10.0.0.1:8080", "10.0.0.2:8080"}, []string{"10.0.0.1:8080", "10.0.0.2:8080"}},
		{"127.0.0.1:8080", []string{"10.0.0.1:8080"}, nil},
		{"8080", []string{"8081"}, nil},
	} {
		if got := within(parsedOne(t, c.published), parsed(t, c.given)); !slices.Equal(got, parsed(t, c.want)) {
			t.Errorf("%s within %v: %v, want %v", c.published, c.given, got, c.want)
		}
	}
}

func parsedOne(t *testing.T, text string) protect.Address {
	t.Helper()
	a, err := protect.ParseAddress(text)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func parsed(t *testing.T, texts []string) (as []protect.Address) {
	t.Helper()
	for _, text := range texts {
		as = append(as, parsedOne(t, text))
	}
	return as
}
