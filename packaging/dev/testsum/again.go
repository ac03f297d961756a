package main

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// The maximum number of failed tests that are run again. More failures have one cause.
const (
	maxRetriedPackages = 8
	maxRetriedTests    = 8
)

// retry has the tests of a package that are run again.
type retry struct {
	pkg   string
	tests []string
}

// retries returns the tests that may be run again, or an error with the reason against that.
func (s *summary) retries() ([]retry, error) {
	if len(s.bad) == 0 {
		return nil, errors.New("no test failed")
	}
	var all []retry
	count := 0
	for _, pkg := range slices.Sorted(maps.Keys(s.bad)) {
		b := s.bad[pkg]
		if b.beyond != "" {
			return nil, fmt.Errorf("%s: %s", pkg, b.beyond)
		}
		if !b.ended {
			return nil, fmt.Errorf("%s has not ended", pkg)
		}
		count += len(b.tests)
		all = append(all, retry{pkg, b.tests})
	}
	if len(all) > maxRetriedPackages || count > maxRetriedTests {
		return nil, fmt.Errorf("%d tests of %d packages are too many", count, len(all))
	}
	return all, nil
}

// command returns the first command with these tests instead of its packages.
func (r retry) command(first []string) []string {
	again := slices.DeleteFunc(slices.Clone(first), func(arg string) bool {
		return strings.HasPrefix(arg, "./") || arg == "holdfast" || strings.HasPrefix(arg, "holdfast/")
	})
	return append(again, "-count=1", "-run", "^("+strings.Join(r.tests, "|")+")$", r.pkg)
}
