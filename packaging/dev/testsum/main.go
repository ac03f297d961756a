// Command testsum reads go test -json, prints what go test itself prints (the
// output of tests that failed, a line for each package) and closes with the tests
// that took longest and the number of tests. It exits 1 if anything failed or nothing ran.
package main

import (
	"bufio"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"os"
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

// shown is how many of the slowest tests are told, of those that took slow seconds.
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
	packages, badPackages   int
	slow                    []timed
}

func main() {
	s := &summary{out: os.Stdout, pending: map[test]string{}}
	if err := s.read(os.Stdin); err != nil {
		fmt.Fprintln(os.Stderr, "error: read go test's output:", err)
		os.Exit(1)
	}
	s.tellSlow()
	fmt.Println(s)
	if s.failed > 0 || s.badPackages > 0 || s.passed == 0 {
		os.Exit(1)
	}
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

func (s *summary) take(e event) {
	switch e.Action {
	case "build-output":
		fmt.Fprint(s.out, e.Output)
	case "output":
		if e.Test != "" {
			s.pending[test{e.Package, e.Test}] += e.Output
		} else if e.Output != "PASS\n" && !strings.HasSuffix(e.Output, "[no test files]\n") {
			fmt.Fprint(s.out, e.Output)
		}
	case "pass", "fail", "skip":
		s.end(e)
	}
}

// end counts a test or a package that is over.
func (s *summary) end(e event) {
	if e.Test == "" {
		switch e.Action {
		case "pass":
			s.packages++
		case "fail":
			s.badPackages++
			for t, output := range s.pending { // cut short by a panic or a timeout
				if t.pkg == e.Package {
					fmt.Fprint(s.out, output)
				}
			}
		}
		return
	}
	t := test{e.Package, e.Test}
	if e.Elapsed >= slow && !strings.Contains(e.Test, "/") {
		s.slow = append(s.slow, timed{t, e.Elapsed})
	}
	switch e.Action {
	case "pass":
		s.passed++
	case "fail":
		s.failed++
		fmt.Fprint(s.out, s.pending[t])
	case "skip":
		s.skipped++
	}
	delete(s.pending, t)
}

// tellSlow says where the time went.
func (s *summary) tellSlow() {
	slices.SortFunc(s.slow, func(a, b timed) int { return cmp.Compare(b.took, a.took) })
	for _, t := range s.slow[:min(shown, len(s.slow))] {
		fmt.Fprintf(s.out, "%6.0fs %s %s\n", t.took, t.pkg, t.name)
	}
}

func (s *summary) String() string {
	return fmt.Sprintf("%d passed, %d failed, %d skipped; packages: %d ok, %d failed",
		s.passed, s.failed, s.skipped, s.packages, s.badPackages)
}
