package rule

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const (
	page  = "../../../../docs/doctor.md"
	begin = "<!-- checks: UPDATE=1 go test ./internal/hosts/doctor/rule writes them -->\n"
	end   = "<!-- end of the checks -->\n"
)

// TestDocumentationOfRules compares docs/doctor.md with the rules.
func TestDocumentationOfRules(t *testing.T) {
	b, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, ok1 := strings.Cut(string(b), begin)
	was, after, ok2 := strings.Cut(rest, end)
	if !ok1 || !ok2 {
		t.Fatal("docs/doctor.md has no markers around the checks")
	}
	var now strings.Builder
	for _, r := range All() {
		fmt.Fprintf(&now, "\n### %s\n- Signal: %s.\n- Threshold: %s.\n- Reason: %s.\n- Source: %s.\n", r.Name, r.Signal, r.Threshold, r.Why, r.Source)
	}
	now.WriteString("\n")
	if os.Getenv("UPDATE") != "" {
		if err := os.WriteFile(page, []byte(before+begin+now.String()+end+after), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if d := cmp.Diff(was, now.String()); d != "" {
		t.Errorf("checks of docs/doctor.md (-page +rules):\n%s", d)
	}
}
