package perf

import (
	"runtime"

	"golang.org/x/sys/unix"
)

// onCPUs runs f, which may call move before it does something to the event of a
// CPU, and brings this thread back to where it may run.
//
// What is done to another CPU's event the kernel does by an interrupt there and
// spins until it is done (smp_call_function_single, kernel/smp.c). Where that CPU is
// virtual and does not run just then, the spin costs more than all of a recording.
func onCPUs(f func() error) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var before unix.CPUSet
	// It fails on a host of more CPUs than the set has room for, where move does, too.
	if unix.SchedGetaffinity(0, &before) == nil {
		defer func() { _ = unix.SchedSetaffinity(0, &before) }()
	}
	return f()
}

// move binds this thread to a CPU. Where a cpuset forbids that, the thread stays,
// and what it does is only dearer.
func move(cpu int) {
	var set unix.CPUSet
	set.Set(cpu)
	_ = unix.SchedSetaffinity(0, &set)
}
