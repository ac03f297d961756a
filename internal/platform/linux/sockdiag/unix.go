package sockdiag

import (
	"encoding/binary"
	"fmt"
	"strings"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// Struct unix_diag_req and unix_diag_msg of include/uapi/linux/unix_diag.h, and their
// attributes.
const (
	unixRequestLen = 24
	unixMessageLen = 16
	unixShowName   = 1 << 0 // UDIAG_SHOW_NAME
	unixShowPeer   = 1 << 2 // UDIAG_SHOW_PEER
	unixName       = 0      // UNIX_DIAG_NAME
	unixPeer       = 2      // UNIX_DIAG_PEER
)

// Unix is a Unix socket. Those that a server has accepted have the server's name.
type Unix struct {
	Inode, Peer uint32 // Peer is 0 if it is not connected
	Name        string // a path, or "" if it has none or an abstract one
}

// UnixSockets returns the Unix sockets. The kernel may leave one out while others are
// closed (net/unix/diag.c).
func (d *Diag) UnixSockets() ([]Unix, error) {
	b := make([]byte, unixRequestLen)
	b[0] = unix.AF_UNIX
	binary.NativeEndian.PutUint32(b[4:], ^uint32(0)) // all states
	binary.NativeEndian.PutUint32(b[12:], unixShowName|unixShowPeer)
	msgs, err := d.ask(request(sockDiagByFamily, b))
	if err != nil {
		return nil, fmt.Errorf("list the Unix sockets: %w", err)
	}
	all := make([]Unix, 0, len(msgs))
	for _, m := range msgs {
		s, err := parseUnix(m.Data)
		if err != nil {
			return nil, fmt.Errorf("list the Unix sockets: %w", err)
		}
		all = append(all, s)
	}
	return all, nil
}

func parseUnix(b []byte) (Unix, error) {
	if len(b) < unixMessageLen {
		return Unix{}, errShort
	}
	s := Unix{Inode: binary.NativeEndian.Uint32(b[4:])}
	d, err := netlink.NewAttributeDecoder(b[unixMessageLen:])
	if err != nil {
		return Unix{}, err
	}
	for d.Next() {
		switch d.Type() {
		case unixName:
			// The kernel counts the zero at the end of a path in some versions.
			s.Name, _, _ = strings.Cut(string(d.Bytes()), "\x00")
		case unixPeer:
			s.Peer = d.Uint32()
		}
	}
	return s, d.Err()
}
