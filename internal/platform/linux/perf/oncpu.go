package perf

import (
	"runtime"

	"golang.org/x/sys/unix"
)

// onCPUs runs f, which may call move before it changes the event of a CPU, and then
// restores this thread's CPU affinity.
//
// To change another CPU's event the kernel sends it an interrupt and spins until it
// is handled (smp_call_function_single, kernel/smp.c). If that CPU is virtual and not
// scheduled at the moment, the spin costs more than a whole recording.
func onCPUs(f func() error) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var before unix.CPUSet
	// It fails on a host with more CPUs than the set has room for; move fails there
	// too.
	if unix.SchedGetaffinity(0, &before) == nil {
		defer func() { _ = unix.SchedSetaffinity(0, &before) }()
	}
	return f()
}

// move binds this thread to a CPU. If a cpuset forbids that, the thread stays, and
// the change is only slower.
func move(cpu int) {
	var set unix.CPUSet
	set.Set(cpu)
	_ = unix.SchedSetaffinity(0, &set)
}
