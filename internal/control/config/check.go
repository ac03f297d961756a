package config

import (
	"fmt"
	"path"
	"slices"
	"strings"
)

// The checks of one value return an error that names its key, or nil.

func absolute(key, file string) error {
	if path.IsAbs(file) {
		return nil
	}
	return fmt.Errorf("%s: %q is not an absolute path", key, file)
}

// absoluteOrNone is absolute for a key that may be missing.
func absoluteOrNone(key, file string) error {
	if file == "" {
		return nil
	}
	return absolute(key, file)
}

// program checks the first word of a command, if there is one.
func program(key string, command []string) error {
	if len(command) == 0 || path.IsAbs(command[0]) {
		return nil
	}
	return fmt.Errorf("%s: %q is not an absolute path of a program; it runs without a shell", key, command[0])
}

func oneOf(key, value string, allowed ...string) error {
	switch {
	case slices.Contains(allowed, value):
		return nil
	case len(allowed) == 2:
		return fmt.Errorf("%s: %q is neither %s nor %s", key, value, allowed[0], allowed[1])
	}
	return fmt.Errorf("%s: %q is not one of %s", key, value, strings.Join(allowed, ", "))
}

// within returns err with the key of the mapping in which it was found; nil stays nil.
func within(key string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s%w", key, err)
}

// distinct refuses a name that an earlier element of a list has.
func distinct(key string, names []string) error {
	for i, name := range names {
		if slices.Contains(names[:i], name) {
			return fmt.Errorf("%s[%d]: the name %q is used twice", key, i, name)
		}
	}
	return nil
}
