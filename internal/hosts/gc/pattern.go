package gc

import (
	"slices"
	"strings"
)

// matches reports whether name matches pattern, in which * stands for any
// characters including slashes. No other character is special.
func matches(pattern, name string) bool {
	parts := strings.Split(pattern, "*")
	if len(parts) == 1 {
		return pattern == name
	}
	first, last := parts[0], parts[len(parts)-1]
	if len(name) < len(first)+len(last) || !strings.HasPrefix(name, first) || !strings.HasSuffix(name, last) {
		return false
	}
	rest := name[len(first) : len(name)-len(last)]
	for _, part := range parts[1 : len(parts)-1] {
		at := strings.Index(rest, part)
		if at < 0 {
			return false
		}
		rest = rest[at+len(part):]
	}
	return true
}

// anyMatches reports whether one of the names matches one of the patterns.
func anyMatches(patterns, names []string) bool {
	return slices.ContainsFunc(patterns, func(p string) bool {
		return slices.ContainsFunc(names, func(n string) bool { return matches(p, n) })
	})
}

// hasLabel reports whether labels have want, which is key or key=value.
func hasLabel(labels map[string]string, want string) bool {
	key, value, exact := strings.Cut(want, "=")
	have, ok := labels[key]
	return ok && (!exact || have == value)
}
