package tracepoint

import (
	"github.com/cilium/ebpf/asm"
	"golang.org/x/sys/unix"
)

// CountStops counts signals SIGSTOP by the process that sends them. The object is the pid of the process
// that gets them. types is the kernel's description of its types, /sys/kernel/btf/vmlinux.
func CountStops(types string) (*Tally, error) {
	k, err := loadTypes(types)
	if err != nil {
		return nil, err
	}
	tgid := k.offset("task_struct", "tgid")
	if k.err != nil {
		return nil, k.err
	}
	return newTally(false, func(t *Tally) error {
		// signal_generate(sig, info, task, group, result)
		return t.attach("signal_generate",
			asm.Instructions{
				argument(asm.R1, 0),
				asm.LSh.Imm(asm.R1, 32), // it is an int
				asm.RSh.Imm(asm.R1, 32),
				asm.JNE.Imm(asm.R1, int32(unix.SIGSTOP), exit),
			},
			field(2, tgid, 4),
			asm.Instructions{
				asm.LoadMem(asm.R7, asm.RFP, atScratch, asm.Word),
				asm.Mov.Imm(asm.R8, 0),
			},
			t.here())
	})
}
