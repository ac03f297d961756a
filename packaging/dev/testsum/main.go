// Command testsum runs go test -json, prints what go test itself prints (the output
// of tests that failed, a line for each package) and closes with the tests that took
// longest and the number of tests. It exits 1 if anything failed or nothing ran.
//
//	testsum [-again] -- go test -json FLAGS PACKAGES
//
// With -again a few tests that failed are run once more, alone: machines are shared,
// and a test that loses a race against a neighbour tells nothing of the code. What
// passes then is told, with a word that can be searched for: FLAKY. Data races,
// panics, timeouts, leaks and whatever else fails a package are never run again.
package main

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
)

func main() {
	again := flag.Bool("again", false, "run a few tests that failed once more")
	flag.Parse()
	if err := run(flag.Args(), *again); err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

func run(command []string, again bool) error {
	s := newSummary(os.Stdout)
	if err := s.run(command); err != nil {
		return err
	}
	s.tellSlow()
	fmt.Println(s)
	if again && !s.ok() {
		return rerun(s, command)
	}
	return s.err()
}

// rerun runs the tests that failed once more, package by package.
func rerun(first *summary, command []string) error {
	retries, err := first.retries()
	if err != nil {
		return fmt.Errorf("%w (not run again: %w)", first.err(), err)
	}
	for _, r := range retries {
		fmt.Printf("\nonce more, alone: %s %s\n", r.pkg, r.tests)
		s := newSummary(os.Stdout)
		if err := s.run(r.command(command)); err != nil {
			return err
		}
		if !s.ok() {
			return fmt.Errorf("%s failed twice: %w", r.pkg, s.err())
		}
		fmt.Printf("FLAKY: %s %s failed, and passed when run alone\n", r.pkg, r.tests)
	}
	return nil
}

// run runs go test and reads what it says. An error means that it could not be read:
// that tests failed is in the summary.
func (s *summary) run(command []string) error {
	cmd := exec.Command(command[0], command[1:]...)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	if err := s.read(out); err != nil {
		return fmt.Errorf("read go test's output: %w", err)
	}
	s.exit = cmd.Wait()
	return nil
}
