// Package guest is pid 1 of the machines of package vm. It mounts the usual file systems,
// loads modules, runs one program, reports its exit code and switches the machine off.
package guest

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// The machine's serial lines.
const (
	Console = "/dev/ttyS0" // of the kernel, and for errors of pid 1
	Output  = "/dev/ttyS1" // of the program
	Exit    = "/dev/ttyS2" // its exit code, in decimal
)

// OrderFile holds the Order, as JSON.
const OrderFile = "/vm/order.json"

// Marker is in the environment of the program and of its children.
const Marker = "HOLDFAST_VM=1"

// Order tells pid 1 what to run.
type Order struct {
	Command []string
	Env     []string
	Modules []string // files, in the order to be loaded
}

// CgroupRoot is the mount point of the only cgroup hierarchy: version 2, with all controllers
// enabled below the root.
const CgroupRoot = "/sys/fs/cgroup"

// Main runs pid 1. It does not return.
func Main() {
	code, err := run()
	if err == nil {
		err = tell(code)
	}
	if err != nil { // standard error is the console
		fmt.Fprintln(os.Stderr, "vm: pid 1:", err)
	}
	if err := unix.Reboot(unix.LINUX_REBOOT_CMD_RESTART); err != nil { // the end, by -no-reboot
		panic(err) // as is the kernel's panic about a lost pid 1
	}
	select {}
}

func run() (int, error) {
	if err := mountAll(); err != nil {
		return 0, err
	}
	b, err := os.ReadFile(OrderFile)
	if err != nil {
		return 0, err
	}
	var o Order
	if err := json.Unmarshal(b, &o); err != nil {
		return 0, err
	}
	for _, m := range o.Modules {
		if err := load(m); err != nil {
			return 0, err
		}
	}
	if err := errors.Join(loopback(), controllers()); err != nil {
		return 0, err
	}
	return program(o)
}

func mountAll() error {
	for _, m := range []struct{ kind, dir string }{
		{"proc", "/proc"},
		{"sysfs", "/sys"},
		{"devtmpfs", "/dev"},
		{"devpts", "/dev/pts"},
		{"tmpfs", "/tmp"},
		{"tmpfs", "/run"},
		{"cgroup2", CgroupRoot},
	} {
		if err := os.MkdirAll(m.dir, 0o755); err != nil {
			return err
		}
		if err := unix.Mount(m.kind, m.dir, m.kind, 0, ""); err != nil {
			return fmt.Errorf("mount %s on %s: %w", m.kind, m.dir, err)
		}
	}
	return nil
}

func load(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := unix.FinitModule(int(f.Fd()), "", 0); err != nil {
		return fmt.Errorf("load module %s: %w", path, err)
	}
	return nil
}

// loopback sets lo up; the kernel gives it 127.0.0.1 and ::1 then.
func loopback() error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	lo, err := unix.NewIfreq("lo")
	if err != nil {
		return err
	}
	lo.SetUint16(unix.IFF_UP)
	return unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, lo)
}

// controllers enables all controllers for the groups below the root.
func controllers() error {
	b, err := os.ReadFile(CgroupRoot + "/cgroup.controllers")
	if err != nil {
		return err
	}
	for _, c := range strings.Fields(string(b)) {
		if err := os.WriteFile(CgroupRoot+"/cgroup.subtree_control", []byte("+"+c), 0); err != nil {
			return err
		}
	}
	return nil
}

// program runs the ordered program and returns its exit code.
func program(o Order) (int, error) {
	line, err := openLine(Output)
	if err != nil {
		return 0, err
	}
	defer line.Close()
	null, err := os.Open(os.DevNull)
	if err != nil {
		return 0, err
	}
	defer null.Close()
	p, err := os.StartProcess(o.Command[0], o.Command, &os.ProcAttr{
		Dir: "/", Env: append(o.Env, Marker), Files: []*os.File{null, line, line},
	})
	if err != nil {
		return 0, err
	}
	status, err := reapUntil(p.Pid)
	if err != nil {
		return 0, err
	}
	if status.Signaled() {
		return 128 + int(status.Signal()), drain(line)
	}
	return status.ExitStatus(), drain(line)
}

// reapUntil reaps orphans, as pid 1 has to, until the program has ended.
func reapUntil(pid int) (syscall.WaitStatus, error) {
	for {
		var status syscall.WaitStatus
		switch dead, err := syscall.Wait4(-1, &status, 0, nil); {
		case err != nil && err != unix.EINTR:
			return 0, err
		case err == nil && dead == pid:
			return status, nil
		}
	}
}

func tell(code int) error {
	line, err := openLine(Exit)
	if err != nil {
		return err
	}
	defer line.Close()
	if _, err := fmt.Fprintln(line, code); err != nil {
		return err
	}
	return drain(line)
}

// openLine opens a serial line in raw mode: no CR before LF.
func openLine(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		return nil, err
	}
	mode, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	if err == nil {
		mode.Oflag &^= unix.OPOST
		mode.Lflag &^= unix.ECHO | unix.ICANON | unix.ISIG
		err = unix.IoctlSetTermios(int(f.Fd()), unix.TCSETS, mode)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("set %s up: %w", path, err), f.Close())
	}
	return f, nil
}

// drain waits until all output is sent: tcdrain(3) is TCSBRK with 1, tty_ioctl(4).
func drain(line *os.File) error {
	for {
		// Signals of the Go runtime interrupt it.
		if err := unix.IoctlSetInt(int(line.Fd()), unix.TCSBRK, 1); err != unix.EINTR {
			return err
		}
	}
}
