package symbol

import (
	"bytes"
	"fmt"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"golang.org/x/sys/unix"
)

// The kernel takes about 50 ms to list all of its symbols, and a microsecond to look
// one up. A BPF program can look up a symbol with the format %ps
// (Documentation/core-api/printk-formats.rst) of bpf_snprintf (Linux 5.13), and can
// be run on request (BPF_PROG_TEST_RUN of raw tracepoints, Linux 5.10).

const (
	batchSize     = 12 // arguments of one run (MAX_BPF_FUNC_ARGS)
	maxKernelName = 128
)

// lookUpKernel looks up the name of each address in the kernel. An error means that this
// kernel cannot do it.
func lookUpKernel(addrs []uint64) (map[uint64]string, error) {
	format, err := ebpf.NewMap(&ebpf.MapSpec{
		Name: "format", Type: ebpf.Array, KeySize: 4, ValueSize: 8, MaxEntries: 1, Flags: unix.BPF_F_RDONLY_PROG,
		Contents: []ebpf.MapKV{{Key: uint32(0), Value: []byte("%ps\x00\x00\x00\x00\x00")}},
	})
	if err != nil {
		return nil, fmt.Errorf("BPF: make a map: %w", err)
	}
	defer format.Close()
	if err := format.Freeze(); err != nil { // the verifier requires a constant format
		return nil, fmt.Errorf("BPF: make a map constant: %w", err)
	}
	answers, err := ebpf.NewMap(&ebpf.MapSpec{Name: "names", Type: ebpf.Array, KeySize: 4, ValueSize: batchSize * maxKernelName, MaxEntries: 1})
	if err != nil {
		return nil, fmt.Errorf("BPF: make a map: %w", err)
	}
	defer answers.Close()
	program, err := ebpf.NewProgram(&ebpf.ProgramSpec{Name: "holdfast", Type: ebpf.RawTracepoint, License: "GPL", Instructions: lookUpInstructions(format, answers)})
	if err != nil {
		return nil, fmt.Errorf("BPF: load the program that names functions: %w", err)
	}
	defer program.Close()
	names := make(map[uint64]string, len(addrs))
	text := make([]byte, batchSize*maxKernelName)
	for len(addrs) > 0 {
		var now [batchSize]uint64
		n := copy(now[:], addrs)
		addrs = addrs[n:]
		if _, err := program.Run(&ebpf.RunOptions{Context: now}); err != nil {
			return nil, fmt.Errorf("BPF: %w", err)
		}
		if err := answers.Lookup(uint32(0), &text); err != nil {
			return nil, fmt.Errorf("BPF: read names: %w", err)
		}
		for i, addr := range now[:n] {
			name, _, _ := bytes.Cut(text[i*maxKernelName:(i+1)*maxKernelName], []byte{0})
			name, _, _ = bytes.Cut(name, []byte{' '}) // " [module]"
			name, _, _ = bytes.Cut(name, []byte{'.'})
			if len(name) > 0 && !bytes.HasPrefix(name, []byte("0x")) && !bytes.HasPrefix(name, []byte("(")) {
				names[addr] = clean(name)
			}
		}
	}
	return names, nil
}

// lookUpInstructions print the name of each argument to its place in the map answers.
func lookUpInstructions(format, answers *ebpf.Map) asm.Instructions {
	const out = "out"
	is := asm.Instructions{
		asm.Mov.Reg(asm.R6, asm.R1),
		asm.StoreImm(asm.RFP, -4, 0, asm.Word),
		asm.LoadMapPtr(asm.R1, answers.FD()),
		asm.Mov.Reg(asm.R2, asm.RFP),
		asm.Add.Imm(asm.R2, -4),
		asm.FnMapLookupElem.Call(),
		asm.JEq.Imm(asm.R0, 0, out),
		asm.Mov.Reg(asm.R7, asm.R0),
	}
	for i := range batchSize {
		is = append(is,
			asm.LoadMem(asm.R1, asm.R6, int16(8*i), asm.DWord),
			asm.StoreMem(asm.RFP, -16, asm.R1, asm.DWord),
			asm.Mov.Reg(asm.R1, asm.R7),
			asm.Add.Imm(asm.R1, int32(i*maxKernelName)),
			asm.Mov.Imm(asm.R2, maxKernelName),
			asm.LoadMapValue(asm.R3, format.FD(), 0),
			asm.Mov.Reg(asm.R4, asm.RFP),
			asm.Add.Imm(asm.R4, -16),
			asm.Mov.Imm(asm.R5, 8),
			asm.FnSnprintf.Call(),
		)
	}
	return append(is, asm.Mov.Imm(asm.R0, 0).WithSymbol(out), asm.Return())
}
