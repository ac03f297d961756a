package drill

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"runtime"
	"strconv"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"holdfast/internal/platform/tasks"
)

// kernelShare is a program that maps, touches and unmaps memory all the time.
func kernelShare() Drill {
	return Drill{
		Name: "kernel", Short: "a program that spends its time in the kernel, on page faults", Rule: "kernel-time",
		Size: 8, MaxSize: 256, Unit: "MiB for each mapping", Containers: true,
		parts: []part{{name: "mapper", limits: limits{cpus: 1}, work: func(ctx context.Context, t Task, ready func()) error {
			ready()
			for ctx.Err() == nil {
				b, err := unix.Mmap(-1, 0, t.Size<<20, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
				if err != nil {
					return err
				}
				for i := 0; i < len(b); i += os.Getpagesize() {
					b[i] = 1
				}
				if err := unix.Munmap(b); err != nil {
					return err
				}
			}
			return nil
		}}},
	}
}

// calls is a program that makes short system calls all the time.
func calls() Drill {
	return Drill{
		Name: "calls", Short: "a program that makes system calls all the time, and does nothing else", Rule: "syscall-storm",
		Size: 2, MaxSize: 16, Unit: "threads", Containers: true,
		parts: []part{{name: "caller", limits: limits{cpus: 1.5}, work: func(ctx context.Context, t Task, ready func()) error {
			runtime.GOMAXPROCS(t.Size + 1)
			ready()
			return threads(t.Size, func(int) error {
				for ctx.Err() == nil {
					unix.Getppid()
				}
				return nil
			})
		}}},
	}
}

// growth is a program that leaks memory below its limit.
func growth() Drill {
	const limit = 256 << 20
	return Drill{
		Name: "leak", Short: "a program that leaks memory, and will reach its limit of 256 MiB", Rule: "memory-growth",
		Size: 512, MaxSize: 8192, Unit: "KiB a second", Containers: true,
		parts: []part{{name: "leaker", limits: limits{memory: limit}, work: func(ctx context.Context, t Task, ready func()) error {
			var kept [][]byte
			ready()
			tick := time.NewTicker(time.Second / 4)
			defer tick.Stop()
			for size := t.Size << 10 / 4; len(kept)*size < limit*3/4; {
				select {
				case <-ctx.Done():
					return nil
				case <-tick.C:
				}
				b := make([]byte, size)
				for i := 0; i < len(b); i += os.Getpagesize() {
					b[i] = 1
				}
				kept = append(kept, b)
			}
			<-ctx.Done()
			runtime.KeepAlive(kept)
			return nil
		}}},
	}
}

// files is a program that opens files up to its own limit.
func files() Drill {
	return Drill{
		Name: "files", Short: "a program that does not close its files, and reaches its own limit", Rule: "limits-near",
		Size: 970, MaxSize: 1000, Unit: "of 1,000 files", Containers: true,
		parts: []part{{name: "opener", work: func(ctx context.Context, t Task, ready func()) error {
			if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 1000, Max: 1000}); err != nil {
				return err
			}
			for range t.Size {
				fd, err := unix.Open("/dev/null", unix.O_RDONLY|unix.O_CLOEXEC, 0)
				if err != nil {
					break // other files are open, too
				}
				defer unix.Close(fd)
			}
			ready()
			<-ctx.Done()
			return nil
		}}},
	}
}

// backlog is a server that does not accept its connections, with clients in the same network
// namespace.
func backlog() Drill {
	return Drill{
		Name: "backlog", Short: "a server that does not accept connections, and its clients", Rule: "listen-overflow",
		Size: 64, MaxSize: 1000, Unit: "clients",
		parts: []part{{name: "server", namespace: true, work: func(ctx context.Context, t Task, ready func()) error {
			address, err := deaf()
			if err != nil {
				return err
			}
			ready()
			return threads(t.Size, func(int) error {
				for ctx.Err() == nil {
					c, err := net.DialTimeout("tcp", address, 500*time.Millisecond)
					if err == nil { // it has a place in the queue, and gives it up
						c.Close()
					}
					if tasks.Sleep(ctx, 50*time.Millisecond) != nil {
						return nil
					}
				}
				return nil
			})
		}}},
	}
}

// datagrams is a program that does not read its datagrams, with senders in the same network
// namespace.
func datagrams() Drill {
	return Drill{
		Name: "datagrams", Short: "a program that does not read its datagrams, and their senders", Rule: "udp-drops",
		Size: 4, MaxSize: 64, Unit: "senders",
		parts: []part{{name: "receiver", namespace: true, work: func(ctx context.Context, t Task, ready func()) error {
			if err := loopbackUp(); err != nil {
				return err
			}
			c, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
			if err != nil {
				return err
			}
			defer c.Close()
			ready()
			return threads(t.Size, func(int) error {
				to, err := net.Dial("udp", c.LocalAddr().String())
				if err != nil {
					return err
				}
				defer to.Close()
				data := make([]byte, 1024)
				for tasks.Sleep(ctx, 10*time.Millisecond) == nil {
					if _, err := to.Write(data); err != nil {
						return err
					}
				}
				return nil
			})
		}}},
	}
}

// blackhole is a program whose connections get no answer, in a network namespace of its own: its packets
// reach a device that forwards nothing.
func blackhole() Drill {
	return Drill{
		Name: "blackhole", Short: "a program whose TCP handshakes get no answer", Rule: "tcp-retransmits",
		Size: 16, MaxSize: 1000, Unit: "clients",
		parts: []part{{name: "client", namespace: true, work: func(ctx context.Context, t Task, ready func()) error {
			if err := silentRoute(); err != nil {
				return err
			}
			ready()
			return threads(t.Size, func(int) error {
				for ctx.Err() == nil {
					c, err := (&net.Dialer{Timeout: 4 * time.Second}).DialContext(ctx, "tcp", silentPeer+":80")
					if err == nil {
						c.Close()
						return fmt.Errorf("%s has answered", silentPeer)
					}
				}
				return nil
			})
		}}},
	}
}

// silentPeer is an address for documentation (RFC 5737) that no host has.
const silentPeer = "192.0.2.2"

// silentRoute makes a network in which the silentPeer is said to be, and is not.
func silentRoute() error {
	link := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "drill0"}, PeerName: "drill1"}
	if err := netlink.LinkAdd(link); err != nil {
		return fmt.Errorf("add a pair of devices: %w", err)
	}
	own, err := netlink.LinkByName("drill0")
	if err != nil {
		return err
	}
	peer, err := netlink.LinkByName("drill1")
	if err != nil {
		return err
	}
	address := &netlink.Addr{IPNet: &net.IPNet{IP: net.IPv4(192, 0, 2, 1), Mask: net.CIDRMask(24, 32)}}
	return errors.Join(netlink.LinkSetUp(own), netlink.LinkSetUp(peer), netlink.AddrAdd(own, address),
		netlink.NeighAdd(&netlink.Neigh{LinkIndex: own.Attrs().Index, IP: net.ParseIP(silentPeer), HardwareAddr: peer.Attrs().HardwareAddr, State: netlink.NUD_PERMANENT}))
}

// loopbackUp lets a new network namespace use its loopback.
func loopbackUp() error {
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return err
	}
	return netlink.LinkSetUp(lo)
}

// deaf listens on loopback with the shortest queue, and returns the address. The socket ends
// with the process.
func deaf() (string, error) {
	if err := loopbackUp(); err != nil {
		return "", err
	}
	s, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return "", err
	}
	if err := unix.Bind(s, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		return "", err
	}
	if err := unix.Listen(s, 0); err != nil {
		return "", err
	}
	at, err := unix.Getsockname(s)
	if err != nil {
		return "", err
	}
	return net.JoinHostPort("127.0.0.1", strconv.Itoa(at.(*unix.SockaddrInet4).Port)), nil
}
