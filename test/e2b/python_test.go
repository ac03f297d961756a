package e2b

import (
	"os"
	"strings"
	"testing"
)

// The example of docs/e2b.md runs, and prints what the page says.
func TestExampleOfThePage(t *testing.T) {
	forPython().need(t)
	page, err := os.ReadFile("../../docs/e2b.md")
	if err != nil {
		t.Fatal(err)
	}
	program := fenced(t, string(page), "```python\n")
	want := fenced(t, string(page), "```text\n")
	n := start(t)
	if got := n.python(program); got != want {
		t.Errorf("the example prints\n%s\nwant\n%s", got, want)
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
