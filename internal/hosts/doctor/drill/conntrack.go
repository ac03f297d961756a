package drill

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

const (
	conntrackMax = "/proc/sys/net/netfilter/nf_conntrack_max"
	// wantedTable is the table's size if a namespace can have its own; largestTable, in
	// entries of about 320 bytes, is the largest table that a drill fills otherwise.
	wantedTable  = 20_000
	largestTable = 600_000
)

// conntrack fills the connection tracking table of a network namespace of its own. The
// host's table is not affected.
func conntrack() Drill {
	return Drill{
		Name: "conntrack", Short: "a connection tracking table that is nearly full", Rule: "conntrack-full",
		Size: 85, MaxSize: 95, Unit: "% of the table",
		parts: []part{{name: "client", namespace: true, work: func(ctx context.Context, t Task, ready func()) error {
			// Newer kernels have a limit for each namespace. On others the file cannot be
			// written here, which is intended.
			_ = os.WriteFile(conntrackMax, []byte(strconv.Itoa(wantedTable)), 0)
			b, err := os.ReadFile(conntrackMax)
			if errors.Is(err, os.ErrNotExist) {
				return errors.New("the kernel does not track connections")
			} else if err != nil {
				return err
			}
			most, err := strconv.Atoi(strings.TrimSpace(string(b)))
			if err != nil || most > largestTable {
				return fmt.Errorf("a connection tracking table with %s entries is too large for a drill (%w)", strings.TrimSpace(string(b)), err)
			}
			if err := connect(ctx, most*t.Size/100); err != nil {
				return err
			}
			ready()
			<-ctx.Done()
			return nil
		}}},
	}
}

// connect inserts n fictitious connections into the table. They time out by themselves
// and are removed with the namespace.
func connect(ctx context.Context, n int) error {
	h, err := netlink.NewHandle(unix.NETLINK_NETFILTER)
	if err != nil {
		return fmt.Errorf("open netlink: %w", err)
	}
	defer h.Close()
	server := net.IPv4(198, 51, 100, 1) // reserved for documentation, RFC 5737
	for i := 0; i < n && ctx.Err() == nil; i++ {
		client := binary.BigEndian.AppendUint32(nil, 10<<24|uint32(i))
		flow := &netlink.ConntrackFlow{
			FamilyType: unix.AF_INET, TimeOut: uint32(MaxFor.Seconds()),
			Forward: netlink.IPTuple{Protocol: unix.IPPROTO_UDP, SrcIP: client, DstIP: server, SrcPort: 5000, DstPort: 53},
			Reverse: netlink.IPTuple{Protocol: unix.IPPROTO_UDP, SrcIP: server, DstIP: client, SrcPort: 53, DstPort: 5000},
		}
		if err := h.ConntrackCreate(netlink.ConntrackTable, unix.AF_INET, flow); err != nil {
			return fmt.Errorf("insert a connection: %w", err)
		}
	}
	return nil
}
