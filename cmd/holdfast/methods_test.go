package main

import (
	"debug/elf"
	"debug/gosym"
	"path/filepath"
	"testing"

	"holdfast/test/lab/labtest"
)

// The program calls no method by its name. One such call makes the linker keep every exported
// method of every type that the program uses in an interface: a seventh of its size
// (docs/adr/templates.md, which says how to find the call).
func TestNoMethodIsCalledByName(t *testing.T) {
	program := filepath.Join(t.TempDir(), "holdfast")
	if err := labtest.Build(t.Context(), "holdfast/cmd/holdfast", program); err != nil {
		t.Fatal(err)
	}
	f, err := elf.Open(program)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	lines, err := f.Section(".gopclntab").Data()
	if err != nil {
		t.Fatal(err)
	}
	table, err := gosym.NewTable(nil, gosym.NewLineTable(lines, f.Section(".text").Addr))
	if err != nil {
		t.Fatal(err)
	}
	// A method that the program calls, and one that it does not call.
	for name, linked := range map[string]bool{"ExecuteC": true, "SetUsageTemplate": false} {
		if got := table.LookupFunc("github.com/spf13/cobra.(*Command)."+name) != nil; got != linked {
			t.Errorf("%s is linked: %v", name, got)
		}
	}
}
