package bpf

import (
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"golang.org/x/sys/unix"
)

// Gate is a filter on connected TCP sockets (SO_ATTACH_BPF, socket(7)). The kernel runs it
// on each segment before it queues the segment (tcp_filter of net/ipv4/tcp_ipv4.c). While
// the gate is closed, it drops segments that begin with a given word, such as the method of
// an HTTP request, and the segments after them. The client sends them again after its
// retransmission timeout. All other segments pass, and the gate notes their order for State.
//
// The filter stays on a socket until Detach, or until the socket closes, also when this
// process has died. A closed gate opens by itself at the end of its time (Shut).
type Gate struct {
	until   *ebpf.Map // until when it is closed, by the clock of bpf_ktime_get_ns
	states  *ebpf.Map // GateState by cookie
	program *ebpf.Program
}

// maxGated limits the sockets of one gate.
const maxGated = 1 << 16

// GateState is what a gate has seen on one socket since it was attached. Sequence numbers
// are those of TCP, and wrap.
type GateState struct {
	// DataAck is the acknowledgement number of the last segment with data that passed, and
	// Ack the highest of any segment. If they are equal and Data is over 0, the peer
	// has seen no answer to that data.
	DataAck, Ack uint32
	// Data counts the segments with data that passed, Dropped those that did not.
	Data, Dropped uint32
}

// Answered reports whether the peer has acknowledged data that it had not seen when it
// sent its last data.
func (s GateState) Answered() bool { return int32(s.Ack-s.DataAck) > 0 }

// NewGate loads an open gate. A segment is dropped by its first four bytes.
func NewGate(words [][4]byte) (*Gate, error) {
	g := &Gate{}
	var err error
	if g.until, err = ebpf.NewMap(&ebpf.MapSpec{
		Name: "hf_gate_until", Type: ebpf.Array, KeySize: 4, ValueSize: 8, MaxEntries: 1,
	}); err != nil {
		return nil, fmt.Errorf("make the BPF map of a gate: %w", err)
	}
	if g.states, err = ebpf.NewMap(&ebpf.MapSpec{
		Name: "hf_gate_states", Type: ebpf.Hash, KeySize: 8, ValueSize: stateLen, MaxEntries: maxGated, Flags: unix.BPF_F_NO_PREALLOC,
	}); err != nil {
		g.Close()
		return nil, fmt.Errorf("make the BPF map of a gate: %w", err)
	}
	if g.program, err = ebpf.NewProgram(&ebpf.ProgramSpec{
		Name: "hf_gate", Type: ebpf.SocketFilter, License: license,
		Instructions: gateInstructions(g.until.FD(), g.states.FD(), words),
	}); err != nil {
		g.Close()
		return nil, fmt.Errorf("load a BPF program that filters segments: %w", err)
	}
	return g, nil
}

// Offsets in the value of the map of states, and its length.
const (
	stateDataAck, stateAck, stateData, stateDropped, stateFirst = 0, 4, 8, 12, 16

	stateLen = 20 // stateFirst is the sequence number of the first dropped segment
)

// Offsets in a TCP header (RFC 9293, section 3.1), and in struct __sk_buff.
const (
	tcpSeq    = 4  // followed by the acknowledgement number and the data offset
	skbLength = 0  // len
	passAll   = -1 // bytes of the segment to keep
)

// gateInstructions filter one segment, which begins with its TCP header.
func gateInstructions(until, states int, words [][4]byte) asm.Instructions {
	const (
		cookie, header, key, first, offset, closed = -8, -24, -28, -32, -40, -48 // on the stack

		newer, older, look, note, begins, drop, pass = "newer", "older", "look", "note", "begins", "drop", "pass"
	)
	ins := asm.Instructions{
		asm.Mov.Reg(asm.R6, asm.R1),
		asm.FnGetSocketCookie.Call(),
		asm.StoreMem(asm.R10, cookie, asm.R0, asm.DWord),
		asm.LoadMapPtr(asm.R1, states),
		asm.Mov.Reg(asm.R2, asm.R10),
		asm.Add.Imm(asm.R2, cookie),
		asm.FnMapLookupElem.Call(),
		asm.JEq.Imm(asm.R0, 0, pass),
		asm.Mov.Reg(asm.R7, asm.R0),
		// load_bytes(ctx, tcpSeq, header, 12)
		asm.Mov.Reg(asm.R1, asm.R6),
		asm.Mov.Imm(asm.R2, tcpSeq),
		asm.Mov.Reg(asm.R3, asm.R10),
		asm.Add.Imm(asm.R3, header),
		asm.Mov.Imm(asm.R4, 12),
		asm.FnSkbLoadBytes.Call(),
		asm.JNE.Imm(asm.R0, 0, pass),
		asm.LoadMem(asm.R9, asm.R10, header+4, asm.Word),
		asm.HostTo(asm.BE, asm.R9, asm.Word),
		// Ack = max(Ack, ack), and ack at first
		asm.LoadMem(asm.R1, asm.R7, stateAck, asm.Word),
		asm.JEq.Imm(asm.R1, 0, newer),
		asm.Mov.Reg(asm.R2, asm.R9),
		asm.Sub.Reg32(asm.R2, asm.R1),
		asm.JSLE.Imm32(asm.R2, 0, older),
		asm.StoreMem(asm.R7, stateAck, asm.R9, asm.Word).WithSymbol(newer),
		// no data: pass
		asm.LoadMem(asm.R2, asm.R10, header+8, asm.Byte).WithSymbol(older),
		asm.RSh.Imm(asm.R2, 4),
		asm.LSh.Imm(asm.R2, 2),
		asm.LoadMem(asm.R8, asm.R6, skbLength, asm.Word),
		asm.JGE.Reg(asm.R2, asm.R8, pass),
		asm.StoreMem(asm.R10, offset, asm.R2, asm.DWord),
		// open: note it
		asm.StoreImm(asm.R10, key, 0, asm.Word),
		asm.LoadMapPtr(asm.R1, until),
		asm.Mov.Reg(asm.R2, asm.R10),
		asm.Add.Imm(asm.R2, key),
		asm.FnMapLookupElem.Call(),
		asm.JEq.Imm(asm.R0, 0, note),
		asm.LoadMem(asm.R1, asm.R0, 0, asm.DWord),
		asm.StoreMem(asm.R10, closed, asm.R1, asm.DWord),
		asm.FnKtimeGetNs.Call(),
		asm.LoadMem(asm.R1, asm.R10, closed, asm.DWord),
		asm.JGE.Reg(asm.R0, asm.R1, note),
		// the dropped segment again, or one after it: drop
		asm.LoadMem(asm.R8, asm.R10, header, asm.Word),
		asm.HostTo(asm.BE, asm.R8, asm.Word),
		asm.LoadMem(asm.R1, asm.R7, stateDropped, asm.Word),
		asm.JEq.Imm(asm.R1, 0, look),
		asm.LoadMem(asm.R1, asm.R7, stateFirst, asm.Word),
		asm.Mov.Reg(asm.R2, asm.R8),
		asm.Sub.Reg32(asm.R2, asm.R1),
		asm.JSGE.Imm32(asm.R2, 0, drop),
		// load_bytes(ctx, offset, first, 4)
		asm.Mov.Reg(asm.R1, asm.R6).WithSymbol(look),
		asm.LoadMem(asm.R2, asm.R10, offset, asm.DWord),
		asm.Mov.Reg(asm.R3, asm.R10),
		asm.Add.Imm(asm.R3, first),
		asm.Mov.Imm(asm.R4, 4),
		asm.FnSkbLoadBytes.Call(),
		asm.JNE.Imm(asm.R0, 0, note),
		asm.LoadMem(asm.R1, asm.R10, first, asm.Word),
	}
	for _, w := range words {
		ins = append(ins, asm.JEq.Imm32(asm.R1, int32(binary.NativeEndian.Uint32(w[:])), begins))
	}
	return append(ins,
		asm.StoreMem(asm.R7, stateDataAck, asm.R9, asm.Word).WithSymbol(note),
		asm.LoadMem(asm.R1, asm.R7, stateData, asm.Word),
		asm.Add.Imm(asm.R1, 1),
		asm.StoreMem(asm.R7, stateData, asm.R1, asm.Word),
		asm.Mov.Imm(asm.R0, passAll).WithSymbol(pass),
		asm.Return(),
		asm.StoreMem(asm.R7, stateFirst, asm.R8, asm.Word).WithSymbol(begins),
		asm.LoadMem(asm.R1, asm.R7, stateDropped, asm.Word).WithSymbol(drop),
		asm.Add.Imm(asm.R1, 1),
		asm.StoreMem(asm.R7, stateDropped, asm.R1, asm.Word),
		asm.Mov.Imm(asm.R0, 0),
		asm.Return(),
	)
}

// ErrFiltered reports that a socket has a filter of its own.
var ErrFiltered = errors.New("the socket has a filter of its own")

// Attach puts the gate on a connected socket and returns the socket's cookie. It replaces
// a gate that a dead process has left. Error: ErrFiltered.
func (g *Gate) Attach(fd int) (cookie uint64, err error) {
	// A classic filter answers with its length (sk_get_filter of net/core/filter.c).
	if n, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_GET_FILTER); err == nil && n > 0 {
		return 0, ErrFiltered
	}
	if cookie, err = unix.GetsockoptUint64(fd, unix.SOL_SOCKET, unix.SO_COOKIE); err != nil {
		return 0, fmt.Errorf("read the cookie of a socket: %w", err)
	}
	if err := g.states.Put(cookie, make([]byte, stateLen)); err != nil {
		return 0, fmt.Errorf("note a socket for a gate: %w", err)
	}
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ATTACH_BPF, g.program.FD()); err != nil {
		return 0, errors.Join(fmt.Errorf("filter a socket: %w", err), g.states.Delete(cookie))
	}
	return cookie, nil
}

// Detach removes the gate from a socket.
func (g *Gate) Detach(fd int, cookie uint64) error {
	err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_DETACH_FILTER, 0)
	if err == unix.ENOENT {
		err = nil
	}
	if err != nil {
		return fmt.Errorf("remove the filter of a socket: %w", err)
	}
	_ = g.states.Delete(cookie) // it may be gone
	return nil
}

// Shut closes the gate on all sockets for d from now. 0 opens it.
func (g *Gate) Shut(d time.Duration) error {
	var until uint64
	if d > 0 {
		var now unix.Timespec
		if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
			return fmt.Errorf("read the clock of a gate: %w", err)
		}
		until = uint64(now.Nano() + int64(d))
	}
	if err := g.until.Put(uint32(0), until); err != nil {
		return fmt.Errorf("close a gate: %w", err)
	}
	return nil
}

// State returns what the gate has seen on a socket.
func (g *Gate) State(cookie uint64) (GateState, error) {
	b := make([]byte, stateLen)
	if err := g.states.Lookup(cookie, b); err != nil {
		return GateState{}, fmt.Errorf("read what a gate has seen: %w", err)
	}
	u32 := binary.NativeEndian.Uint32
	return GateState{DataAck: u32(b[stateDataAck:]), Ack: u32(b[stateAck:]), Data: u32(b[stateData:]), Dropped: u32(b[stateDropped:])}, nil
}

// Close closes the gate's descriptors. The filter stays on its sockets.
func (g *Gate) Close() {
	_ = errors.Join(g.program.Close(), g.states.Close(), g.until.Close()) // nil ones need no Close
}
