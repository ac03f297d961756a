package main

import (
	"os"
	"strings"
	"testing"
)

// The snippet in the guide is the file that this page runs and that the tests in a browser
// check.
func TestGuidesSnippetIsThePages(t *testing.T) {
	read := func(name string) string {
		b, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	snippet := read("assets/reconnect.js")
	if !strings.Contains(read("../docs/reconnecting.md"), "```js\n"+snippet+"```\n") {
		t.Error("docs/reconnecting.md does not have demo/assets/reconnect.js word for word")
	}
	if n := strings.Count(snippet, "\n"); n > 40 {
		t.Errorf("it has %d lines, the guide promises 40", n)
	}
	if !strings.Contains(read("assets/line.js"), `import { reconnecting } from "./reconnect.js";`) {
		t.Error("the page does not use it")
	}
}
