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
			only(unix.SIGSTOP),
			receiver(tgid),
			t.here())
	})
}

// only ends the program at signal_generate for other signals.
func only(signal unix.Signal) asm.Instructions {
	return asm.Instructions{
		argument(asm.R1, 0),
		asm.LSh.Imm(asm.R1, 32), // it is an int
		asm.RSh.Imm(asm.R1, 32),
		asm.JNE.Imm(asm.R1, int32(signal), exit),
	}
}

// receiver makes the pid of the process that gets a signal the object. tgid is the offset in its
// task_struct.
func receiver(tgid int32) asm.Instructions {
	return append(field(2, tgid, 4),
		asm.LoadMem(asm.R7, asm.RFP, atScratch, asm.Word),
		asm.Mov.Imm(asm.R8, 0))
}

// codeStopped and codeTrapped are the codes of a signal SIGCHLD that tells a tracer of a stop: CLD_STOPPED
// for a process that it has seized, CLD_TRAPPED for others (include/uapi/asm-generic/siginfo.h).
const (
	codeTrapped = 4
	codeStopped = 5
)

// CountTraps counts how often traced processes stop for their tracer, ptrace(2). The object is the pid of
// the tracer. types is as in CountStops.
func CountTraps(types string) (*Tally, error) {
	k, err := loadTypes(types)
	if err != nil {
		return nil, err
	}
	tgid, traced, code := k.offset("task_struct", "tgid"), k.offset("task_struct", "ptrace"), k.offset("kernel_siginfo", "si_code")
	if k.err != nil {
		return nil, k.err
	}
	return newTally(false, func(t *Tally) error {
		const stopped = "stopped"
		return t.attach("signal_generate",
			only(unix.SIGCHLD),
			field(1, code, 4),
			asm.Instructions{
				asm.LoadMem(asm.R1, asm.RFP, atScratch, asm.Word),
				asm.JEq.Imm(asm.R1, codeTrapped, stopped),
				asm.JNE.Imm(asm.R1, codeStopped, exit),
				// A stop by a signal, without a tracer, has this code, too.
				asm.FnGetCurrentTask.Call().WithSymbol(stopped),
				asm.Mov.Reg(asm.R3, asm.R0),
				asm.Add.Imm(asm.R3, traced),
			},
			toScratch(4),
			asm.Instructions{
				asm.LoadMem(asm.R1, asm.RFP, atScratch, asm.Word),
				asm.JEq.Imm(asm.R1, 0, exit),
			},
			receiver(tgid),
			t.here())
	})
}
