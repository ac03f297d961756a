package e2b

import (
	"os"
	"strings"
	"testing"

	"holdfast/test/lab/labtest"
)

// The example of docs/e2b.md runs, and prints what the page says, with each version of the
// SDK that is tested.
func TestExampleOfThePage(t *testing.T) {
	versions := pythonSDKs()
	if !labtest.Long() {
		versions = versions[:1]
	}
	page, err := os.ReadFile("../../docs/e2b.md")
	if err != nil {
		t.Fatal(err)
	}
	program := fenced(t, string(page), "```python\n")
	want := fenced(t, string(page), "```text\n")
	n := start(t)
	for _, v := range versions {
		if got := n.pythonWith(v, program); got != want {
			t.Errorf("with %s the example prints\n%s\nwant\n%s", v.version, got, want)
		}
	}
}

// fenced returns the first block of a page that begins with a fence.
func fenced(t *testing.T, page, fence string) string {
	t.Helper()
	_, rest, ok := strings.Cut(page, fence)
	text, _, end := strings.Cut(rest, "```\n")
	if !ok || !end {
		t.Fatalf("the page has no %q", fence)
	}
	return text
}
