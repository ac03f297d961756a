package gateway

import "runtime"

// SpareProcessor gives this process one processor (GOMAXPROCS) more than it has CPUs. Loops that wait
// for WebSockets are in system calls. While all processors are in one, the runtime's monitor looks every
// 20 µs for processors to take away, and takes each. With a spare one it leaves them for 10 ms, and
// sleeps longer (retake of runtime/proc.go, Go 1.26). A process that runs a Gateway calls it once, at its
// start. From then on the runtime does not follow changes of the process's CPU limit.
func SpareProcessor() { runtime.GOMAXPROCS(runtime.GOMAXPROCS(0) + 1) }

// loops is the number of loops for WebSockets, one for each CPU.
func loops() int { return max(1, runtime.GOMAXPROCS(0)-1) }
