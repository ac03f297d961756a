// Command testsum runs go test -json and prints what go test prints: the output of failed
// tests, and a line for each package. At the end it prints the slowest tests and the number
// of tests. It exits 1 if a test failed or none ran.
//
//	testsum [-again] [-at-once N] -- go test -json FLAGS PACKAGES [-- go test -json …]…
//
// Commands start in their order, at most N (1) at once.
//
// With -again, testsum runs a few failed tests again, alone, because on a shared machine a
// test may fail without an error in the code. A test that passes then is marked FLAKY. Data
// races, panics, timeouts, leaks and other failures of a package are final.
package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
)

func main() {
	again := flag.Bool("again", false, "run a few tests that failed once more")
	atOnce := flag.Int("at-once", 1, "how many commands run at a time")
	flag.Parse()
	if err := run(split(flag.Args()), *atOnce, *again); err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

// split splits the arguments into commands.
func split(args []string) (commands [][]string) {
	for {
		i := slices.Index(args, "--")
		if i < 0 {
			return append(commands, args)
		}
		commands, args = append(commands, args[:i]), args[i+1:]
	}
}

func run(commands [][]string, atOnce int, again bool) error {
	out := &lockedWriter{to: os.Stdout}
	firsts, err := runAll(commands, max(1, atOnce), out)
	if err != nil {
		return err
	}
	for i, first := range firsts {
		if first.ok() {
			continue
		}
		if !again {
			err = errors.Join(err, first.err())
			continue
		}
		err = errors.Join(err, rerun(first, commands[i], out))
	}
	return err
}

// runAll runs each command once. An error means that the output of one could not be read.
func runAll(commands [][]string, atOnce int, out io.Writer) ([]*summary, error) {
	all, errs := make([]*summary, len(commands)), make([]error, len(commands))
	slots := make(chan struct{}, atOnce)
	var wg sync.WaitGroup
	for i, command := range commands {
		slots <- struct{}{}
		s := newSummary(out)
		all[i] = s
		wg.Go(func() {
			defer func() { <-slots }()
			if errs[i] = s.run(command); errs[i] == nil {
				fmt.Fprint(out, s.slowest(), s, "\n")
			}
		})
	}
	wg.Wait()
	return all, errors.Join(errs...)
}

// lockedWriter separates the output of concurrent commands.
type lockedWriter struct {
	mu sync.Mutex
	to io.Writer
}

func (w *lockedWriter) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.to.Write(p)
}

// rerun runs the tests that failed once more, package by package.
func rerun(first *summary, command []string, out io.Writer) error {
	retries, err := first.retries()
	if err != nil {
		return fmt.Errorf("%w (not run again: %w)", first.err(), err)
	}
	for _, r := range retries {
		fmt.Fprintf(out, "\nonce more, alone: %s %s\n", r.pkg, r.tests)
		s := newSummary(out)
		if err := s.run(r.command(command)); err != nil {
			return err
		}
		if !s.ok() {
			return fmt.Errorf("%s failed twice: %w", r.pkg, s.err())
		}
		fmt.Fprintf(out, "FLAKY: %s %s failed, and passed when run alone\n", r.pkg, r.tests)
	}
	return nil
}

// run runs go test and reads its output. An error means that the output could not be read.
// Failed tests are in the summary.
func (s *summary) run(command []string) error {
	if len(command) == 0 {
		return errors.New("no command")
	}
	cmd := exec.Command(command[0], command[1:]...)
	var said lastBytes
	cmd.Stderr = io.MultiWriter(os.Stderr, &said)
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
	if text := strings.TrimSpace(string(said)); s.exit != nil && text != "" {
		s.exit = fmt.Errorf("%w: %s", s.exit, text)
	}
	return nil
}

// lastBytes keeps the end of what is written to it: why a command has not started its tests.
type lastBytes []byte

func (l *lastBytes) Write(p []byte) (int, error) {
	*l = append(*l, p...)
	*l = (*l)[max(0, len(*l)-300):]
	return len(p), nil
}
