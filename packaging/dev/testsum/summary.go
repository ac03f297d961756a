package main

import (
	"bufio"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
)

// event is one line of go test -json (go doc test2json; build-output since Go
// 1.24).
type event struct {
	Action, Package, Test, Output string
	Elapsed                       float64 // seconds, at the end of a test
}

type test struct{ pkg, name string }

// shown is the number of slowest tests that are printed, of those that took slow seconds.
const (
	shown = 15
	slow  = 15
)

type timed struct {
	test
	took float64
}

type summary struct {
	out                     io.Writer
	pending                 map[test]string // output of tests that have not ended
	passed, failed, skipped int
	packages                int
	bad                     map[string]*badPackage // by import path
	slow                    []timed
	exit                    error // of go test
}

// badPackage is a package that failed.
type badPackage struct {
	tests  []string // that failed, without their parts
	beyond string   // reason against another run, "" for none
	ended  bool
}

func newSummary(out io.Writer) *summary {
	return &summary{out: out, pending: map[test]string{}, bad: map[string]*badPackage{}}
}

func (s *summary) read(in io.Reader) error {
	for lines := bufio.NewReader(in); ; {
		line, err := lines.ReadBytes('\n')
		if len(line) > 0 {
			var e event
			if json.Unmarshal(line, &e) == nil {
				s.take(e)
			} else {
				fmt.Fprintf(s.out, "%s", line) // from go itself
			}
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// beyond are texts in the output of failures that are final, and whether they are at the
// beginning of a line. A page that a test prints may contain the word panic.
var beyond = []struct {
	sign   string
	begins bool
}{{"WARNING: DATA RACE", false}, {"panic: ", true}, {"fatal error: ", true}, {"found unexpected goroutines", false}}

func (s *summary) take(e event) {
	switch e.Action {
	case "build-output":
		fmt.Fprint(s.out, e.Output)
	case "output":
		for _, b := range beyond {
			if strings.HasPrefix(e.Output, b.sign) || !b.begins && strings.Contains(e.Output, b.sign) {
				s.of(e.Package).beyond = strings.TrimSpace(b.sign)
			}
		}
		if e.Test != "" {
			s.pending[test{e.Package, e.Test}] += e.Output
		} else if e.Output != "PASS\n" && !strings.HasSuffix(e.Output, "[no test files]\n") {
			fmt.Fprint(s.out, e.Output)
		}
	case "pass", "fail", "skip":
		s.end(e)
	}
}

// of returns the entry of a failed package. A package that passes is removed.
func (s *summary) of(pkg string) *badPackage {
	if s.bad[pkg] == nil {
		s.bad[pkg] = &badPackage{}
	}
	return s.bad[pkg]
}

// end counts a test or a package that has ended.
func (s *summary) end(e event) {
	if e.Test == "" {
		s.endPackage(e)
		return
	}
	t := test{e.Package, e.Test}
	whole, _, part := strings.Cut(e.Test, "/")
	if e.Elapsed >= slow && !part {
		s.slow = append(s.slow, timed{t, e.Elapsed})
	}
	switch e.Action {
	case "pass":
		s.passed++
	case "fail":
		s.failed++
		fmt.Fprint(s.out, s.pending[t])
		if b := s.of(e.Package); !slices.Contains(b.tests, whole) {
			b.tests = append(b.tests, whole)
		}
	case "skip":
		s.skipped++
	}
	delete(s.pending, t)
}

func (s *summary) endPackage(e event) {
	switch e.Action {
	case "pass":
		s.packages++
		delete(s.bad, e.Package) // a passing test may print such a text
	case "skip":
		delete(s.bad, e.Package)
	case "fail":
		b := s.of(e.Package)
		b.ended = true
		if len(b.tests) == 0 && b.beyond == "" {
			b.beyond = "no test of it failed" // the build or the end of the package failed
		}
		for t, output := range s.pending { // cut short by a panic or a timeout
			if t.pkg == e.Package {
				fmt.Fprint(s.out, output)
				b.beyond = cmp.Or(b.beyond, "it was cut short")
			}
		}
	}
}

// slowest returns the slowest tests, a line for each.
func (s *summary) slowest() string {
	slices.SortFunc(s.slow, func(a, b timed) int { return cmp.Compare(b.took, a.took) })
	var lines strings.Builder
	for _, t := range s.slow[:min(shown, len(s.slow))] {
		fmt.Fprintf(&lines, "%6.0fs %s %s\n", t.took, t.pkg, t.name)
	}
	return lines.String()
}

func (s *summary) String() string {
	return fmt.Sprintf("%d passed, %d failed, %d skipped; packages: %d ok, %d failed",
		s.passed, s.failed, s.skipped, s.packages, len(s.bad))
}

func (s *summary) ok() bool { return s.err() == nil }

// err returns nil if tests ran and none failed.
func (s *summary) err() error {
	switch {
	case s.failed > 0 || len(s.bad) > 0:
		return fmt.Errorf("%d tests in %d packages failed", s.failed, len(s.bad))
	case s.exit != nil:
		return fmt.Errorf("go test: %w", s.exit)
	case s.passed == 0:
		return errors.New("no test ran")
	}
	return nil
}
