package standby

import (
	"os"
	"slices"
	"testing"

	"golang.org/x/sys/unix"
)

func TestProgramRanges(t *testing.T) {
	const maps = `00400000-00f43000 r-xp 00000000 fe:00 247741                             /usr/bin/holdfast
00f43000-01caa000 r--p 00b43000 fe:00 247741                             /usr/bin/holdfast (deleted)
01caa000-01d34000 rw-p 018aa000 fe:00 247741                             /usr/bin/holdfast
01d34000-03d7c000 rw-p 00000000 00:00 0
7f0000000000-7f0000001000 r--s 00000000 fe:00 99                         /etc/other
7ffd3b5e2000-7ffd3b603000 rw-p 00000000 00:00 0                          [stack]
`
	want := []addresses{{from: 0x400000, to: 0xf43000}, {from: 0xf43000, to: 0x1caa000}}
	if got := programRanges(maps); !slices.Equal(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
	self, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		t.Fatal(err)
	}
	if got := programRanges(string(self)); len(got) < 2 {
		t.Errorf("of this program: %+v", got)
	}
}

// A range with a written page or a locked one is told from the others.
func TestProgramRangesOfSmaps(t *testing.T) {
	const smaps = `00400000-00f43000 r-xp 00000000 fe:00 247741                             /usr/bin/holdfast
Anonymous:             0 kB
VmFlags: rd ex mr mw me lo sd
00f43000-01caa000 r--p 00b43000 fe:00 247741                             /usr/bin/holdfast
Anonymous:            12 kB
VmFlags: rd mr mw me sd
01caa000-01d34000 rw-p 018aa000 fe:00 247741                             /usr/bin/holdfast
Anonymous:           512 kB
VmFlags: rd wr mr mw me lo
`
	want := []addresses{{0x400000, 0xf43000, false, true}, {0xf43000, 0x1caa000, true, false}}
	if got := programRanges(smaps); !slices.Equal(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

// Code that was unmapped runs again, and locked code stays.
func TestUnmapProgram(t *testing.T) {
	resident := func() int64 {
		t.Helper()
		smaps, err := os.ReadFile("/proc/self/smaps")
		if err != nil {
			t.Fatal(err)
		}
		program := programRanges(string(smaps))
		if len(program) < 2 {
			t.Fatalf("the program has the ranges %+v", program)
		}
		pages := int64(0)
		pagemap, err := os.Open("/proc/self/pagemap")
		if err != nil {
			t.Fatal(err)
		}
		defer pagemap.Close()
		for _, r := range program {
			entries := make([]byte, (r.to-r.from)/4096*8)
			if _, err := pagemap.ReadAt(entries, int64(r.from/4096*8)); err != nil {
				t.Fatal(err)
			}
			for i := 7; i < len(entries); i += 8 {
				pages += int64(entries[i] >> 7) // bit 63: the page is present (proc_pid_pagemap(5))
			}
		}
		return pages
	}
	t.Cleanup(func() {
		if err := unix.Munlockall(); err != nil {
			t.Error(err)
		}
	})
	if err := LockProgram(); err != nil { // maps all of it
		t.Fatal(err)
	}
	locked := resident()
	if err := UnmapProgram(); err != nil || resident() != locked {
		t.Errorf("%d pages were locked, %d are left: %v", locked, resident(), err)
	}
	if err := unix.Munlockall(); err != nil {
		t.Fatal(err)
	}
	if err := UnmapProgram(); err != nil || resident() >= locked { // most of this small program is mapped again at once
		t.Errorf("%d of %d pages are left: %v", resident(), locked, err)
	}
}
