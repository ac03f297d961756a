package main

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// lines are what go test -json says of a package p with a test A that ends with the given action.
func lines(ends string, more ...string) string {
	all := append([]string{`{"Action":"run","Package":"p","Test":"A"}`, `{"Action":"run","Package":"p","Test":"A/part"}`}, more...)
	return strings.Join(append(all, `{"Action":"`+ends+`","Package":"p","Test":"A/part"}`, `{"Action":"`+ends+`","Package":"p","Test":"A"}`,
		`{"Action":"`+ends+`","Package":"p"}`), "\n")
}

func TestWhatMayBeRunAgain(t *testing.T) {
	output := func(text string) string {
		return `{"Action":"output","Package":"p","Test":"A","Output":"` + text + `\n"}`
	}
	for name, x := range map[string]struct {
		in    string
		ok    bool
		tests []string // to be run again
		why   string   // not
	}{
		"passes":                       {in: lines("pass"), ok: true},
		"passes and prints a panic":    {in: lines("pass", output("panic: of another")), ok: true},
		"fails":                        {in: lines("fail", output("too late")), tests: []string{"A"}},
		"a data race":                  {in: lines("fail", output("WARNING: DATA RACE")), why: "DATA RACE"},
		"a panic":                      {in: lines("fail", output("panic: index out of range")), why: "panic"},
		"shows the word":               {in: lines("fail", output("    no line says panic: here")), tests: []string{"A"}},
		"cut short":                    {in: `{"Action":"output","Package":"p","Test":"A","Output":"x"}` + "\n" + `{"Action":"fail","Package":"p"}`, why: "no test of it failed"},
		"cut short behind one":         {in: lines("fail", `{"Action":"output","Package":"p","Test":"B","Output":"x"}`), why: "cut short"},
		"not built":                    {in: `{"Action":"fail","Package":"p"}`, why: "no test of it failed"},
		"has not ended":                {in: `{"Action":"fail","Package":"p","Test":"A"}`, why: "not ended"},
		"nothing ran":                  {in: ""},
		"another package fails to end": {in: lines("fail") + "\n" + `{"Action":"fail","Package":"q","Test":"B"}`, why: "q has not ended"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSummary(io.Discard)
			if err := s.read(strings.NewReader(x.in)); err != nil {
				t.Fatal(err)
			}
			if s.ok() != x.ok {
				t.Fatalf("ok is %v: %v", s.ok(), s.err())
			}
			got, err := s.retries()
			if x.tests != nil && (err != nil || len(got) != 1 || got[0].pkg != "p" || !slices.Equal(got[0].tests, x.tests)) {
				t.Errorf("to be run again: %v, %v", got, err)
			}
			if x.tests == nil && err == nil || x.why != "" && !strings.Contains(err.Error(), x.why) {
				t.Errorf("run again: %v, because of %v; want %q", got, err, x.why)
			}
		})
	}
}

func TestTooManyAreNotRunAgain(t *testing.T) {
	var in strings.Builder
	for _, pkg := range []string{"a", "b", "c", "d", "e", "f", "g", "h", "i"} {
		in.WriteString(strings.ReplaceAll(lines("fail"), `"p"`, `"`+pkg+`"`) + "\n")
	}
	s := newSummary(io.Discard)
	if err := s.read(strings.NewReader(in.String())); err != nil {
		t.Fatal(err)
	}
	if got, err := s.retries(); err == nil || !strings.Contains(err.Error(), "too many") {
		t.Errorf("%v, %v", got, err)
	}
}

func TestCommandOfARetry(t *testing.T) {
	got := retry{"holdfast/p", []string{"TestA", "TestB"}}.command([]string{"go", "test", "-race", "-p", "3", "-json", "./test/agent", "holdfast", "holdfast/q", "./..."})
	want := []string{"go", "test", "-race", "-p", "3", "-json", "-count=1", "-run", "^(TestA|TestB)$", "holdfast/p"}
	if !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

// A command that starts no test has not failed in a test: the error tells what it printed.
func TestCommandThatStartsNoTest(t *testing.T) {
	s := newSummary(io.Discard)
	if err := s.run([]string{"sh", "-c", "echo go: updates to go.mod needed >&2; exit 1"}); err != nil {
		t.Fatal(err)
	}
	if err := s.err(); err == nil || !strings.Contains(err.Error(), "exit status 1: go: updates to go.mod needed") {
		t.Errorf("%v", err)
	}
}

func TestCommandsSideBySide(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	good, bad := write("good", lines("pass")), write("bad", lines("fail"))
	for _, atOnce := range []int{1, 2, 5} {
		var out bytes.Buffer
		all, err := runAll(split([]string{"cat", good, "--", "cat", bad, "--", "cat", good}), atOnce, &lockedWriter{to: &out})
		if err != nil || len(all) != 3 || !all[0].ok() || all[1].ok() || !all[2].ok() {
			t.Errorf("%d at once: %v, %v", atOnce, all, err)
		}
		if n := strings.Count(out.String(), "2 passed, 0 failed"); n != 2 {
			t.Errorf("%d at once:\n%s", atOnce, out.String())
		}
	}
	if err := run(split([]string{"cat", good, "--"}), 1, false); err == nil {
		t.Error("an empty command was accepted")
	}
}
