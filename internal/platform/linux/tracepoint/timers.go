package tracepoint

import (
	"github.com/cilium/ebpf/asm"
)

// timerFunc is the offset of hrtimer.function on 64 bits: after node and _softexpires
// (include/linux/hrtimer.h).
const timerFunc = 40

// Owners has the offsets that lead from the timer of a performance event to the process that
// opened the event.
type Owners struct {
	timer, owner, tgid int32 // of perf_event.hw.hrtimer, perf_event.owner and task_struct.tgid
}

// FindOwners reads the offsets from the kernel's description of its types,
// /sys/kernel/btf/vmlinux.
func FindOwners(file string) (*Owners, error) {
	k, err := loadTypes(file)
	if err != nil {
		return nil, err
	}
	o := &Owners{timer: k.offset("perf_event", "hw", "hrtimer"), owner: k.offset("perf_event", "owner"), tgid: k.offset("task_struct", "tgid")}
	if k.err != nil {
		return nil, k.err
	}
	return o, nil
}

// CountClocks counts how often the timers of performance events expire; their function is at an
// address. The process of a place is the one that was interrupted. The object has the number of
// the CPU in its lower half, and in the other the pid of the process that opened the event, 0
// without owners. It adds some 0.1 µs to each timer of the host, so it is for less than a second.
func CountClocks(function uint64, owners *Owners) (*Tally, error) {
	return newTally(false, func(t *Tally) error {
		// hrtimer_expire_entry(hrtimer, now)
		return t.attach("hrtimer_expire_entry",
			field(0, timerFunc, 8),
			asm.Instructions{
				asm.LoadMem(asm.R1, asm.RFP, atScratch, asm.DWord),
				asm.LoadImm(asm.R2, int64(function), asm.DWord),
				asm.JNE.Reg(asm.R1, asm.R2, exit),
				asm.Mov.Imm(asm.R1, 0),
				asm.StoreMem(asm.RFP, atScratch, asm.R1, asm.DWord),
			},
			owners.load(),
			asm.Instructions{
				asm.LoadMem(asm.R7, asm.RFP, atScratch, asm.Word),
				asm.LSh.Imm(asm.R7, 32),
				asm.FnGetSmpProcessorId.Call(),
				asm.Or.Reg(asm.R7, asm.R0),
				asm.Mov.Imm(asm.R8, 0),
			},
			t.here())
	})
}

// load writes the pid of the event's owner to atScratch. A read that fails writes 0
// (bpf_probe_read_kernel).
func (o *Owners) load() asm.Instructions {
	if o == nil {
		return nil
	}
	return append(append(field(0, o.owner-o.timer, 8),
		asm.LoadMem(asm.R3, asm.RFP, atScratch, asm.DWord),
		asm.Add.Imm(asm.R3, o.tgid)), append(frame(asm.R1, atScratch),
		asm.Mov.Imm(asm.R2, 4), asm.FnProbeReadKernel.Call())...)
}
