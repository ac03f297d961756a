// Package hosts tests the Debian package on whole virtual machines: a Debian with systemd as
// its first process, a disk, a network, a journal, sshd and a container engine.
//
// The machines are emulated by qemu without hardware acceleration, so that they run on every
// host. packaging/dev/hosts.sh makes their Debian once. Each machine begins with a fresh copy
// of its disk, and the host is not affected. docs/testing.md describes how to run the tests.
package hosts

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"
	"golang.org/x/sys/unix"

	"holdfast/internal/platform/linux/deathsig"
	"holdfast/test/lab"
)

// patience is the limit of each wait and each command. It is no measurement: an emulated
// machine on a busy host is a hundred times slower than the host.
const patience = time.Hour

// Machine is a virtual machine. Its methods may be called by any goroutine, except Boot and
// PowerOff, which must not run beside other methods.
type Machine struct {
	base string // directory made by hosts.sh
	dir  string
	qemu emulator
	size []string     // qemu's options for CPUs and memory
	disk string       // qemu's options for the disk, each after a comma
	kill func()       // ends qemu
	gone <-chan error // yields qemu's end
	ssh  *ssh.Client
}

// emulator is a qemu.
type emulator struct {
	program   string
	args, env []string
}

// debians is the qemu of Debian 12. With a thread for each CPU, a CPU can go on with old code after the
// kernel has changed its code, as for a tracepoint, and takes the breakpoint of the change forever.
func debians() emulator {
	return emulator{program: "qemu-system-x86_64", args: []string{"-accel", "tcg,thread=single"}}
}

// New prepares a machine that ends with the test, and does not boot it. suite is Debian's
// name of a release.
func New(t testing.TB, suite string) *Machine {
	t.Helper()
	m := &Machine{base: made(t, "hosts.sh", suite), dir: t.TempDir(), qemu: debians(), size: []string{"-smp", "2", "-m", "2048"}, kill: func() {}}
	disk := exec.CommandContext(t.Context(), "qemu-img", "create", "-q", "-f", "qcow2", "-F", "raw", "-b", filepath.Join(m.base, "disk.img"), m.path("disk"))
	if out, err := disk.CombinedOutput(); err != nil {
		t.Fatalf("qemu-img: %v\n%s", err, out)
	}
	t.Cleanup(func() {
		m.kill()
		if t.Failed() {
			t.Logf("the end of the machine's console:\n%s", m.Console())
		}
	})
	return m
}

// made runs a script of packaging/dev, and returns the directory that it prints.
func made(t testing.TB, script string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "../../packaging/dev/"+script, args...)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s: %v", script, err)
	}
	return strings.TrimSpace(string(out))
}

func (m *Machine) path(name string) string { return filepath.Join(m.dir, name) }

// Console returns the end of the kernel's messages since the last boot.
func (m *Machine) Console() []byte {
	text, err := os.ReadFile(m.path("console"))
	if err != nil {
		return []byte(err.Error())
	}
	return text[max(0, len(text)-4096):]
}

// Boot starts the machine, and returns when systemd has started all units or failed to.
func (m *Machine) Boot(ctx context.Context) error {
	sshd, err := lab.FreePort()
	if err != nil {
		return fmt.Errorf("boot a machine: find a port for its sshd: %w", err)
	}
	var complaint bytes.Buffer
	qemu := exec.Command(m.qemu.program, append(slices.Concat(m.qemu.args, m.size),
		"-cpu", "Nehalem,+rdrand,+xsave,+xsaveopt",
		"-nodefaults", "-display", "none", "-no-reboot", "-serial", "file:"+m.path("console"),
		"-drive", "file="+m.path("disk")+",if=virtio,format=qcow2,cache=writeback"+m.disk, "-device", "virtio-rng-pci",
		"-netdev", "user,id=net,hostfwd=tcp:"+sshd+"-:22", "-device", "virtio-net-pci,netdev=net",
		"-kernel", filepath.Join(m.base, "vmlinuz"), "-initrd", filepath.Join(m.base, "initrd.img"),
		// On a busy host the kernel's check of its timer fails, and units need over 90 s. An
		// emulated serial line is slow. The console shows the stacks of a lockup.
		"-append", "root=/dev/vda rw console=ttyS0 loglevel=5 sysctl.kernel.softlockup_all_cpu_backtrace=1 systemd.show_status=false panic=-1 mitigations=off no_timer_check systemd.default_timeout_start_sec=1h")...)
	qemu.Env = append(os.Environ(), m.qemu.env...)
	qemu.Stdout, qemu.Stderr = &complaint, &complaint
	ended, err := deathsig.Start(qemu, unix.SIGKILL)
	if err != nil {
		return fmt.Errorf("boot a machine: %w", err)
	}
	m.gone = ended
	m.kill = func() {
		_ = qemu.Process.Kill() // it may have ended
		<-ended
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	if err := m.login(ctx, sshd); err != nil {
		m.kill()
		return fmt.Errorf("boot a machine: %w\n%s%s", err, complaint.Bytes(), m.Console())
	}
	// The command fails if a unit has failed, which is for the tests to judge.
	_, err = m.Do(ctx, "systemctl is-system-running --wait || true")
	return err
}

// login connects to the machine's sshd, at an address of this host, as soon as it answers.
func (m *Machine) login(ctx context.Context, sshd string) error {
	text, err := os.ReadFile(filepath.Join(m.base, "key"))
	if err != nil {
		return err
	}
	key, err := ssh.ParsePrivateKey(text)
	if err != nil {
		return err
	}
	config := &ssh.ClientConfig{
		User: "root", Auth: []ssh.AuthMethod{ssh.PublicKeys(key)}, Timeout: time.Minute,
		HostKeyCallback: ssh.InsecureIgnoreHostKey(), // qemu is a child on loopback
	}
	for {
		if m.ssh, err = ssh.Dial("tcp", sshd, config); err == nil {
			return nil
		}
		select {
		case end := <-m.gone:
			return fmt.Errorf("qemu has ended: %w", end)
		case <-ctx.Done():
			return fmt.Errorf("log in: %w", err)
		case <-time.After(time.Second):
		}
	}
}

// PowerOff runs `systemctl poweroff`, and returns when the machine is off. Boot starts it
// again with the same disk.
func (m *Machine) PowerOff(ctx context.Context) error {
	_, _ = m.Do(ctx, "systemctl poweroff") // the connection may end before the answer
	select {
	case err := <-m.gone:
		return errors.Join(err, ignoreClosed(m.ssh.Close()))
	case <-time.After(patience):
		return fmt.Errorf("the machine is not off after %v:\n%s", patience, m.Console())
	}
}

func ignoreClosed(err error) error {
	if errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}

// Do runs a script of bash in the machine as root, and returns its output and errors. It
// ends at the first command that fails.
func (m *Machine) Do(ctx context.Context, script string) (string, error) {
	return m.session(ctx, script, nil)
}

// Write creates a file in the machine. A relative path is below the directory of root, where Do
// runs its scripts.
func (m *Machine) Write(ctx context.Context, path string, text []byte) error {
	_, err := m.session(ctx, fmt.Sprintf("mkdir -p %q; cat >%q", filepath.Dir(path), path), text)
	return err
}

func (m *Machine) session(ctx context.Context, script string, input []byte) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	var out bytes.Buffer
	err := m.stream(ctx, script, input, &out)
	return out.String(), err
}

// stream runs a script like Do, without a limit, and writes its output and errors to out.
func (m *Machine) stream(ctx context.Context, script string, input []byte, out io.Writer) error {
	s, err := m.ssh.NewSession()
	if err != nil {
		return fmt.Errorf("open a session in the machine: %w", err)
	}
	defer s.Close()
	stop := context.AfterFunc(ctx, func() { s.Close() })
	defer stop()
	s.Stdin, s.Stdout = bytes.NewReader(input), out
	err = s.Run("exec 2>&1 bash --norc -euo pipefail -c '" + strings.ReplaceAll(script, "'", `'\''`) + "'")
	if ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	return err
}

// Dial connects to an address in the machine, as a program there does.
func (m *Machine) Dial(ctx context.Context, network, address string) (net.Conn, error) {
	return m.ssh.DialContext(ctx, network, address)
}
