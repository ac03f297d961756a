package main

import "testing"

// dpkg orders the versions by their age.
func TestVersionsAsDpkgOrdersThem(t *testing.T) {
	for git, want := range map[string]string{
		"v1.2.0":                  "1.2.0",
		"v1.2.0-5-gabc1234":       "1.2.0+5.gabc1234",
		"v1.2.0-5-gabc1234-dirty": "1.2.0+5.gabc1234+dirty",
		"v1.3.0-dirty":            "1.3.0+dirty",
		"0.0.0-619-gabc1234":      "0.0.0+619.gabc1234",
		"dev":                     "0~git.dev",
		"abc-dirty":               "0~git.abc.dirty",
	} {
		if got := debVersion(git); got != want {
			t.Errorf("%s: %s, want %s", git, got, want)
		}
	}
}
