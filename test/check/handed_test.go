package check

import (
	"errors"
	"strings"
	"testing"
)

func TestHandedOn(t *testing.T) {
	uses := []Use{{"a1", "a", 5}, {"a1", "a", 5}, {"", "a", 6}, {"b1", "b", 7}}
	if n, err := HandedOn(uses); n != 2 || err != nil {
		t.Errorf("%d containers, %v", n, err)
	}
	if _, err := HandedOn(uses[2:3]); !errors.Is(err, ErrNothing) {
		t.Errorf("of nothing: %v", err)
	}
	for name, again := range map[string]Use{"another session": {"a1", "c", 9}, "a later claim of its own": {"a1", "a", 9}} {
		n, err := HandedOn(append(uses[:4:4], again))
		var handed *HandedError
		if n != 2 || !errors.As(err, &handed) || len(handed.Uses["a1"]) != 2 || !strings.Contains(err.Error(), "epoch 9") || strings.Contains(err.Error(), "b1") {
			t.Errorf("%s: %d containers, %v", name, n, err)
		}
	}
}
