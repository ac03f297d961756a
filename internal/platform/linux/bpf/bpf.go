// Package bpf has the two small BPF programs that move a listening socket's clients
// to another socket. It assembles them from instructions, so it needs no compiler and
// no BTF.
//
// Programs and maps live as long as their file descriptors, and end with the process.
// A program that is attached to a group of sockets lives as long as a socket of the
// group.
package bpf

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"
)

// license need not be GPL: the helpers in use do not require it.
const license = "MIT"

// Selector steers the new connections of a group of listening sockets (SO_REUSEPORT,
// socket(7)) to one of them, and also the unaccepted connections of a closing socket
// (BPF_SK_REUSEPORT_SELECT_OR_MIGRATE, Linux 5.14). Without a choice the kernel
// distributes them over the group as usual.
type Selector struct {
	choice  *ebpf.Map
	program *ebpf.Program
}

// NewSelector loads a selector without a choice.
func NewSelector() (*Selector, error) {
	m, err := ebpf.NewMap(&ebpf.MapSpec{
		Name: "hf_choice", Type: ebpf.ReusePortSockArray, KeySize: 4, ValueSize: 8, MaxEntries: 1,
	})
	if err != nil {
		return nil, fmt.Errorf("make a BPF map of sockets: %w", err)
	}
	p, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Name: "hf_select", Type: ebpf.SkReuseport, AttachType: ebpf.AttachSkReuseportSelectOrMigrate, License: license,
		Instructions: asm.Instructions{
			// select(ctx, choice, &key, 0); on failure there is no choice
			asm.StoreImm(asm.R10, -4, 0, asm.Word),
			asm.LoadMapPtr(asm.R2, m.FD()),
			asm.Mov.Reg(asm.R3, asm.R10),
			asm.Add.Imm(asm.R3, -4),
			asm.Mov.Imm(asm.R4, 0),
			asm.FnSkSelectReuseport.Call(),
			asm.Mov.Imm(asm.R0, 1), // SK_PASS
			asm.Return(),
		},
	})
	if err != nil {
		m.Close()
		return nil, fmt.Errorf("load a BPF program that steers connections: %w", err)
	}
	return &Selector{m, p}, nil
}

// Choose makes the selector choose a socket, which listens with SO_REUSEPORT.
func (s *Selector) Choose(fd int) error {
	if err := s.choice.Put(uint32(0), uint64(fd)); err != nil {
		return fmt.Errorf("choose a socket: %w", err)
	}
	return nil
}

// Unchoose removes the choice.
func (s *Selector) Unchoose() error {
	if err := s.choice.Delete(uint32(0)); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		return fmt.Errorf("remove the choice of a socket: %w", err)
	}
	return nil
}

// Attach attaches the selector to the group of a socket, in place of the group's
// present program.
func (s *Selector) Attach(fd int) error {
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ATTACH_REUSEPORT_EBPF, s.program.FD()); err != nil {
		return fmt.Errorf("attach a BPF program to a group of sockets: %w", err)
	}
	return nil
}

// Close closes the selector. It stays attached to its group until Detach.
func (s *Selector) Close() { _ = errors.Join(s.program.Close(), s.choice.Close()) }

// Detach removes the program from the group of a socket, if it has one.
func Detach(fd int) error {
	err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_DETACH_REUSEPORT_BPF, 0)
	// The socket is in no group, or in one without a program.
	if err != nil && err != unix.ENOENT && err != unix.EINVAL {
		return fmt.Errorf("detach the BPF program of a group of sockets: %w", err)
	}
	return nil
}

// BindHook sets SO_REUSEPORT and SO_REUSEADDR on sockets when they are bound.
type BindHook struct{ links []link.Link }

// HookBind hooks TCP's bind(2) to one of the ports, in the network namespace of
// the cookie (NetnsCookie) and by any process in or below the cgroup at path, a
// directory of cgroup2.
func HookBind(path string, cookie uint64, ports []uint16) (*BindHook, error) {
	h := &BindHook{}
	for _, at := range []ebpf.AttachType{ebpf.AttachCGroupInet4Bind, ebpf.AttachCGroupInet6Bind} {
		if err := h.add(path, at, bindInstructions(cookie, ports)); err != nil {
			h.Close()
			return nil, fmt.Errorf("hook bind(2) in %s: %w", path, err)
		}
	}
	return h, nil
}

func (h *BindHook) add(path string, at ebpf.AttachType, ins asm.Instructions) error {
	p, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Name: "hf_bind", Type: ebpf.CGroupSockAddr, AttachType: at, License: license, Instructions: ins,
	})
	if err != nil {
		return err
	}
	defer p.Close() // the link keeps the program
	l, err := link.AttachCgroup(link.CgroupOptions{Path: path, Attach: at, Program: p})
	if err != nil {
		return err
	}
	h.links = append(h.links, l)
	return nil
}

// Close removes the hook.
func (h *BindHook) Close() {
	for _, l := range h.links {
		_ = l.Close()
	}
	h.links = nil
}

// Offsets in struct bpf_sock_addr of include/uapi/linux/bpf.h.
const (
	addrPort = 24 // user_port, in network byte order
	addrType = 32 // type
)

// bindInstructions always allow the bind (1). If type, port and network namespace
// match, they set the options first.
func bindInstructions(cookie uint64, ports []uint16) asm.Instructions {
	const options, out = "options", "out"
	ins := asm.Instructions{
		asm.Mov.Reg(asm.R6, asm.R1),
		asm.LoadMem(asm.R2, asm.R6, addrType, asm.Word),
		asm.JNE.Imm(asm.R2, unix.SOCK_STREAM, out),
		asm.LoadMem(asm.R2, asm.R6, addrPort, asm.Word),
	}
	for _, p := range ports {
		onWire := binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, p))
		ins = append(ins, asm.JEq.Imm(asm.R2, int32(onWire), options))
	}
	ins = append(ins,
		asm.Ja.Label(out),
		asm.Mov.Reg(asm.R1, asm.R6).WithSymbol(options),
		asm.FnGetNetnsCookie.Call(),
		asm.LoadImm(asm.R1, int64(cookie), asm.DWord),
		asm.JNE.Reg(asm.R0, asm.R1, out),
		asm.StoreImm(asm.R10, -4, 1, asm.Word),
	)
	for _, option := range []int32{unix.SO_REUSEPORT, unix.SO_REUSEADDR} {
		ins = append(ins,
			asm.Mov.Reg(asm.R1, asm.R6),
			asm.Mov.Imm(asm.R2, unix.SOL_SOCKET),
			asm.Mov.Imm(asm.R3, option),
			asm.Mov.Reg(asm.R4, asm.R10),
			asm.Add.Imm(asm.R4, -4),
			asm.Mov.Imm(asm.R5, 4),
			asm.FnSetsockopt.Call(),
		)
	}
	return append(ins,
		asm.Mov.Imm(asm.R0, 1).WithSymbol(out),
		asm.Return(),
	)
}

// NetnsCookie names the network namespace of a socket (SO_NETNS_COOKIE, Linux
// 5.14).
func NetnsCookie(fd int) (uint64, error) {
	c, err := unix.GetsockoptUint64(fd, unix.SOL_SOCKET, unix.SO_NETNS_COOKIE)
	if err != nil {
		return 0, fmt.Errorf("read the cookie of a network namespace: %w", err)
	}
	return c, nil
}
