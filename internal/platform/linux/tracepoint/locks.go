package tracepoint

import (
	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
)

// Flags of contention_begin, include/trace/events/lock.h.
const (
	lockSpin  = 1
	lockMutex = 32
)

// shortWait is the shortest wait for a lock that is counted, in nanoseconds: shorter
// waits are frequent and normal.
const shortWait = 10_000

// LockWaits counts waits for sleeping locks of the kernel, with their durations, by
// process and path. It needs Linux 5.19. It leaves out spinlocks, whose waits are
// frequent and short.
func LockWaits() (*Tally, error) {
	const (
		atTask  = -8
		atSince = -24 // nanoseconds and lock
	)
	return newTally(true, func(t *Tally) error {
		begun, err := t.newMap(&ebpf.MapSpec{Name: "begun", Type: ebpf.LRUHash, KeySize: 8, ValueSize: 16, MaxEntries: 16384})
		if err != nil {
			return err
		}
		// contention_begin(lock, flags)
		if err := t.attach("contention_begin",
			asm.Instructions{
				argument(asm.R1, 1),
				asm.And.Imm(asm.R1, lockSpin|lockMutex),
				asm.JEq.Imm(asm.R1, lockSpin, exit), // a mutex that spins first counts
			},
			task(atTask),
			asm.Instructions{
				asm.FnKtimeGetNs.Call(),
				asm.StoreMem(asm.RFP, atSince, asm.R0, asm.DWord),
				argument(asm.R1, 0),
				asm.StoreMem(asm.RFP, atSince+8, asm.R1, asm.DWord),
			},
			store(begun, atTask, atSince, ebpf.UpdateAny)); err != nil {
			return err
		}
		// contention_end(lock, ret)
		return t.attach("contention_end",
			task(atTask),
			lookup(begun, atTask),
			asm.Instructions{
				asm.LoadMem(asm.R9, asm.R0, 0, asm.DWord), // since
				asm.LoadMem(asm.R7, asm.R0, 8, asm.DWord), // lock
				argument(asm.R1, 0),
				asm.JNE.Reg(asm.R1, asm.R7, exit),
			},
			onEntry(asm.FnMapDeleteElem, begun, atTask),
			asm.Instructions{
				asm.FnKtimeGetNs.Call(),
				asm.Mov.Reg(asm.R8, asm.R0),
				asm.Sub.Reg(asm.R8, asm.R9),
				asm.JLT.Imm(asm.R8, shortWait, exit),
			},
			t.here())
	})
}
