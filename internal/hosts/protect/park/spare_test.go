package park

import (
	"net"
	"net/netip"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"holdfast/internal/hosts/protect/protecttest"
	"holdfast/internal/platform/linux/pidfd"
	"holdfast/internal/platform/linux/sockdiag"
)

// A spare is taken over from a process that ended while its spare held: the program of that
// process, which is still attached, has chosen the socket.
func TestAdoptSpareThatHolds(t *testing.T) {
	needsRoot(t)
	address := netip.MustParseAddrPort(protecttest.FreePort(t))
	server := listen(t, address.String(), false, false)
	l, f := found(t, address)
	first, err := NewSpare(l, f)
	if err != nil {
		t.Fatal(err)
	}
	stored, err := unix.FcntlInt(uintptr(first.FD()), unix.F_DUPFD_CLOEXEC, 3)
	if err != nil {
		t.Fatal(err)
	}
	server.Close()
	if err := first.Hold(); err != nil {
		t.Fatal(err)
	}
	first.group.close() // as at the end of its process

	held, _ := found(t, address)
	second, err := AdoptSpare(stored, held, false)
	if err != nil {
		t.Fatal(err)
	}
	client, err := net.Dial("tcp", address.String())
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	if n := second.Waiting(); n != 1 {
		t.Errorf("%d connections wait, want 1", n)
	}
	if err := second.End(nil, pidfd.OpenFile{}); err != nil {
		t.Error(err)
	}
}

// found returns the one listener on an address, and its descriptor in this process.
func found(t *testing.T, address netip.AddrPort) (sockdiag.Listener, pidfd.OpenFile) {
	t.Helper()
	ls := protecttest.Listening(t, address.Port())
	i := slices.IndexFunc(ls, func(l sockdiag.Listener) bool { return l.Addr == address })
	if i < 0 {
		t.Fatalf("nothing listens on %v", address)
	}
	files, err := pidfd.FindSockets([]int{unix.Getpid()}, ls[i].Inode)
	if err != nil {
		t.Fatal(err)
	}
	return ls[i], files[ls[i].Inode]
}
