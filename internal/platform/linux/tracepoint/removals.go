package tracepoint

import (
	"errors"
	"fmt"
	"hash/fnv"
	"slices"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
)

// Removals counts the control groups of all hierarchies that are removed, and those
// that the kernel frees. For each group it counts the groups below that were removed
// and are not freed. The kernel frees a removed group when nothing refers to it;
// memory that is charged to it keeps it. Its methods are for one goroutine.
//
// Both events have the group's path, which shows its ancestors
// (include/trace/events/cgroup.h). Paths are counted by their hashes, so that the
// kernel need not store them.
type Removals struct {
	running
	totals, left, text *ebpf.Map
}

// The capacity of the maps.
const (
	maxAbove = 8192 // ancestors of removed groups; further ones are not counted
	maxPath  = 512  // bytes of a path; the rest is ignored
	totalOf  = 2
)

// The indices of the totals.
const (
	removed = iota
	released
)

// CountRemovals begins to count.
func CountRemovals() (*Removals, error) {
	r := &Removals{}
	if err := r.start(); err != nil {
		return nil, errors.Join(err, r.Close())
	}
	return r, nil
}

func (r *Removals) start() error {
	var err error
	if r.totals, err = r.newMap(&ebpf.MapSpec{Name: "totals", Type: ebpf.Array, KeySize: 4, ValueSize: 8, MaxEntries: totalOf}); err != nil {
		return err
	}
	if r.left, err = r.newMap(&ebpf.MapSpec{Name: "left", Type: ebpf.Hash, KeySize: 8, ValueSize: 8, MaxEntries: maxAbove}); err != nil {
		return err
	}
	if r.text, err = r.newMap(&ebpf.MapSpec{Name: "text", Type: ebpf.PerCPUArray, KeySize: 4, ValueSize: maxPath, MaxEntries: 1}); err != nil {
		return err
	}
	// The release event first: a missed release would leave the count too high for
	// ever.
	if err := r.attach("cgroup_release", r.count(released)); err != nil {
		return err
	}
	return r.attach("cgroup_rmdir", r.count(removed))
}

// FNV-1a with 64 bits, as hash/fnv has it.
const (
	hashBegin = 0xcbf29ce484222325
	hashPrime = 0x100000001b3
)

// The offsets on the program's stack.
const (
	atAbove = -8
	atOne   = -16
	atIndex = -24
)

// count counts one event, and adds or subtracts one for each ancestor of its group:
// after each component of the path, the hash so far is that of an ancestor. R7 is the
// position in the path, R8 the hash and R9 the path. Loops need Linux 5.3.
func (r *Removals) count(total int32) asm.Instructions {
	first := store(r.left, atAbove, atOne, ebpf.UpdateNoExist) // keeps the entry of a concurrent CPU
	first[0] = first[0].WithSymbol("first")
	more := slices.Concat(asm.Instructions{asm.JEq.Imm(asm.R0, 0, "first")}, add(1), asm.Instructions{asm.Ja.Label("hash")}, first)
	if total == released {
		more = append(asm.Instructions{
			asm.JEq.Imm(asm.R0, 0, "hash"),
			asm.LoadMem(asm.R1, asm.R0, 0, asm.DWord),
			asm.JSLT.Imm(asm.R1, 1, "hash"), // it was removed before the counting began
		}, add(-1)...)
	}
	return slices.Concat(
		asm.Instructions{
			asm.Mov.Imm(asm.R1, 1),
			asm.StoreMem(asm.RFP, atOne, asm.R1, asm.DWord),
			asm.StoreImm(asm.RFP, atIndex, int64(total), asm.Word),
		},
		lookup(r.totals, atIndex),
		add(1),
		asm.Instructions{asm.StoreImm(asm.RFP, atIndex, 0, asm.Word)},
		lookup(r.text, atIndex),
		asm.Instructions{
			asm.Mov.Reg(asm.R9, asm.R0),
			// cgroup_rmdir(cgrp, path), and cgroup_release alike
			asm.Mov.Reg(asm.R1, asm.R9),
			asm.Mov.Imm(asm.R2, maxPath),
			argument(asm.R3, 1),
			asm.FnProbeReadKernelStr.Call(),
			asm.JSLT.Imm(asm.R0, 2, exit), // with its terminator
			asm.Mov.Imm(asm.R7, 0),
			asm.LoadImm(asm.R8, hashBegin-1<<64, asm.DWord),

			asm.JGE.Imm(asm.R7, maxPath, exit).WithSymbol("byte"),
			asm.Mov.Reg(asm.R1, asm.R9),
			asm.Add.Reg(asm.R1, asm.R7),
			asm.LoadMem(asm.R2, asm.R1, 0, asm.Byte),
			asm.JEq.Imm(asm.R2, 0, exit),
			asm.JNE.Imm(asm.R2, '/', "hash"),
			asm.StoreMem(asm.RFP, atAbove, asm.R8, asm.DWord),
		},
		onEntry(asm.FnMapLookupElem, r.left, atAbove),
		more,
		asm.Instructions{
			asm.Mov.Reg(asm.R1, asm.R9).WithSymbol("hash"),
			asm.Add.Reg(asm.R1, asm.R7),
			asm.LoadMem(asm.R2, asm.R1, 0, asm.Byte),
			asm.Xor.Reg(asm.R8, asm.R2),
			asm.LoadImm(asm.R1, hashPrime, asm.DWord),
			asm.Mul.Reg(asm.R8, asm.R1),
			asm.Add.Imm(asm.R7, 1),
			asm.Ja.Label("byte"),
		})
}

// Totals returns the number of groups that were removed so far, and the number that
// were freed, including groups that were removed before the counting began.
func (r *Removals) Totals() (gone, freed uint64, err error) {
	err = r.totals.Lookup(uint32(removed), &gone)
	if err == nil {
		err = r.totals.Lookup(uint32(released), &freed)
	}
	if err != nil {
		err = fmt.Errorf("BPF: read how many groups were removed: %w", err)
	}
	return gone, freed, err
}

// Left has the numbers of removed groups that are not freed, by Above of their
// ancestors.
type Left map[uint64]uint64

// Left returns the present numbers, and removes entries of 0.
func (r *Removals) Left() (Left, error) {
	left := make(Left)
	var none []uint64
	var key, n uint64
	it := r.left.Iterate()
	for it.Next(&key, &n) {
		if n == 0 {
			none = append(none, key)
		} else {
			left[key] = n
		}
	}
	if err := it.Err(); err != nil {
		return left, fmt.Errorf("BPF: read where removed groups are left: %w", err)
	}
	return left, r.forget(none)
}

// Forget removes the entries of groups that do not exist any more. Groups below them
// stay counted for their living ancestors.
func (r *Removals) Forget(left Left, living map[uint64]bool) error {
	var dead []uint64
	for key := range left {
		if !living[key] {
			dead = append(dead, key)
		}
	}
	return r.forget(dead)
}

func (r *Removals) forget(keys []uint64) error {
	for _, key := range keys {
		if err := r.left.Delete(key); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return fmt.Errorf("BPF: forget where groups were removed: %w", err)
		}
	}
	return nil
}

// Above is the key in Left of a group by its path from the root of its hierarchy, "/"
// being the root.
func Above(path string) uint64 {
	h := fnv.New64a()
	h.Write([]byte(strings.TrimSuffix(path, "/"))) // which never fails
	return h.Sum64()
}
