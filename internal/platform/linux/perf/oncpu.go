package perf

import "golang.org/x/sys/unix"

// move binds this thread, which threads.Spend ends, to a CPU before it changes the event
// of that CPU. If a cpuset forbids that, the thread stays, and the change is only slower.
//
// To change another CPU's event the kernel sends it an interrupt and spins until it
// is handled (smp_call_function_single, kernel/smp.c). If that CPU is virtual and not
// scheduled at the moment, the spin costs more than a whole recording.
func move(cpu int) {
	var set unix.CPUSet
	set.Set(cpu)
	_ = unix.SchedSetaffinity(0, &set)
}
