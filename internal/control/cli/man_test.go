//go:build manpages

package cli_test

import "testing"

func TestManualPages(t *testing.T) { runScripts(t, "testdata/manpages") }
