// Package vm runs one program on a separate, real Linux kernel in an emulated machine. The
// kernel, cgroups and modules of the host do not matter, and the host is not affected. Only
// tests use it.
//
// The machine is qemu without hardware acceleration, so that it runs on every host, with
// Debian's cloud kernel. Its initramfs has the program, its files, the requested kernel
// modules, and package guest as pid 1. It has no disk, and no network except lo. Its three
// serial lines are the kernel's console, the program's output and its exit code.
//
// docs/testing.md describes how tests use it.
package vm

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"holdfast/internal/platform/linux/deathsig"
	"holdfast/test/vm/guest"
)

// Limit is the maximum run time of a machine if the context has no deadline.
const Limit = 10 * time.Minute

// ErrNoExit means that the machine ended without an exit code of the program: the kernel
// panicked, or the machine was switched off.
var ErrNoExit = errors.New("the machine ended without an exit code")

// Config describes a machine and its program.
type Config struct {
	Command []string          // the first word is a path in the machine
	Env     []string          // the whole environment
	Files   map[string]string // path in the machine → file of the host, with its mode
	Busybox []string          // commands of the host's static busybox, for /bin
	Modules []string          // kernel modules to load first, with their dependencies
	Output  io.Writer         // receives standard output and error; nil discards them
	CPUs    int               // 0 is 2
	Memory  int               // in MiB; 0 is 768
}

// Run boots a machine, runs the program in it and returns its exit code; 128 + n means that
// signal n ended it. The machine ends when ctx is done, after Limit if ctx has no deadline,
// and when this process dies. It is gone when Run returns. An error, such as ErrNoExit with
// the end of the kernel's log, means that there is no exit code. Run needs
// qemu-system-x86_64, and Go to build package guest. The first run on a host downloads the
// kernel.
func Run(ctx context.Context, c Config) (exitCode int, err error) {
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, Limit)
		defer cancel()
	}
	dir, err := os.MkdirTemp("", "vm-")
	if err != nil {
		return 0, fmt.Errorf("run a machine: %w", err)
	}
	defer os.RemoveAll(dir)
	m := machine{dir}
	kernel, err := findKernel(ctx)
	if err != nil {
		return 0, fmt.Errorf("run a machine: find a kernel: %w", err)
	}
	if err := m.prepare(ctx, kernel, c); err != nil {
		return 0, fmt.Errorf("run a machine: prepare its initramfs: %w", err)
	}
	if err := m.boot(ctx, kernel, c); err != nil {
		return 0, fmt.Errorf("run a machine: %w", err)
	}
	return m.exitCode()
}

// machine is the directory with the files of one machine.
type machine struct{ dir string }

func (m machine) initramfs() string { return filepath.Join(m.dir, "initramfs") }
func (m machine) console() string   { return filepath.Join(m.dir, "console") }
func (m machine) exit() string      { return filepath.Join(m.dir, "exit") }

// boot runs qemu to its end.
func (m machine) boot(ctx context.Context, k kernel, c Config) error {
	if c.CPUs == 0 {
		c.CPUs = 2
	}
	if c.Memory == 0 {
		c.Memory = 768
	}
	qemu := exec.CommandContext(ctx, "qemu-system-x86_64",
		// With a thread for each CPU, qemu 7.2 sometimes repeats an instruction for ever that
		// another CPU has patched, such as the switch of a tracepoint. It is not faster, either.
		"-accel", "tcg,thread=single", "-cpu", "Nehalem,+rdrand",
		"-smp", strconv.Itoa(c.CPUs), "-m", strconv.Itoa(c.Memory),
		"-nodefaults", "-display", "none", "-no-reboot",
		// In the order of guest's Console, Output and Exit.
		"-serial", "file:"+m.console(), "-serial", "stdio", "-serial", "file:"+m.exit(),
		"-kernel", k.image(), "-initrd", m.initramfs(),
		// panic=-1 reboots at once, and -no-reboot makes that the end. On a busy host the
		// kernel's check of its timer fails.
		"-append", "console=ttyS0 panic=-1 mitigations=off no_timer_check softlockup_panic=1 watchdog_thresh=15 quiet")
	var complaint bytes.Buffer
	qemu.Stdout, qemu.Stderr = c.Output, &complaint
	err := deathsig.Run(qemu, unix.SIGKILL)
	switch {
	case ctx.Err() != nil:
		return fmt.Errorf("%w; the end of the kernel's log:\n%s", context.Cause(ctx), m.log())
	case errors.Is(err, exec.ErrNotFound):
		return fmt.Errorf("%w (Debian's package qemu-system-x86 has it)", err)
	case err != nil:
		return fmt.Errorf("qemu: %w: %s", err, complaint.Bytes())
	}
	return nil
}

func (m machine) exitCode() (int, error) {
	b, err := os.ReadFile(m.exit())
	if err != nil {
		return 0, err
	}
	code, err := strconv.Atoi(strings.TrimSpace(string(b)))
	if err != nil {
		return 0, fmt.Errorf("%w; the end of the kernel's log:\n%s", ErrNoExit, m.log())
	}
	return code, nil
}

// log returns the end of the kernel's console.
func (m machine) log() []byte {
	b, err := os.ReadFile(m.console())
	if err != nil {
		return []byte(err.Error())
	}
	return b[max(0, len(b)-4096):]
}

// prepare writes the initramfs.
func (m machine) prepare(ctx context.Context, k kernel, c Config) error {
	init := filepath.Join(m.dir, "init")
	if err := Build(ctx, init, "build", "holdfast/test/vm/guest/init"); err != nil {
		return err
	}
	modules, err := k.modules(c.Modules)
	if err != nil {
		return err
	}
	order := guest.Order{Command: c.Command, Env: c.Env}
	files := map[string]string{"/init": init}
	for i, path := range modules {
		to := fmt.Sprintf("/vm/modules/%d.ko", i)
		files[to] = path
		order.Modules = append(order.Modules, to)
	}
	for _, command := range c.Busybox {
		if files["/bin/"+command], err = exec.LookPath("busybox"); err != nil {
			return fmt.Errorf("%w (Debian's package busybox-static has it)", err)
		}
	}
	maps.Copy(files, c.Files)
	f, err := os.Create(m.initramfs())
	if err != nil {
		return err
	}
	return errors.Join(writeInitramfs(f, files, order), f.Close())
}

// Build builds a static program for a machine to the file path. command is a go command
// that ends with a package, such as "build" or "test", "-c".
func Build(ctx context.Context, path string, command ...string) error {
	last := len(command) - 1
	args := append(slices.Clone(command[:last]), "-trimpath", "-tags=grpcnotrace", "-ldflags=-s -w", "-o", path, command[last])
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH=amd64")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("go %s: %w\n%s", strings.Join(command, " "), err, out)
	}
	return nil
}
