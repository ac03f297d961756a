package vethnet

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
)

// The directory of addresses has a symbolic link for each reserved address, whose target
// is the owner's name. symlink(2) makes a link with its target atomically, and fails if
// it exists.

// maxOwner is the longest name of an owner in bytes.
const maxOwner = 128

// ErrFull means that all addresses are reserved.
var ErrFull = errors.New("no address is left")

// Reserve reserves an address for an owner, a word of at most 128 bytes without line
// breaks, until Release. It may be called once for an owner. It begins at a random
// address, so that a released address is not soon reused: a client with the old route
// would reach the new owner.
func (n *Net) Reserve(owner string) (netip.Addr, error) {
	if owner == "" || len(owner) > maxOwner || strings.ContainsAny(owner, "\r\n") {
		return netip.Addr{}, fmt.Errorf("an address for %q: that is no owner", owner)
	}
	if err := os.MkdirAll(n.dir, 0o700); err != nil {
		return netip.Addr{}, fmt.Errorf("reserve an address: %w", err)
	}
	// Without the addresses of the net, the gateway and the broadcast.
	size := uint32(1)<<(32-n.subnet.Bits()) - 3
	begin := rand.Uint32N(size)
	for i := range size {
		addr := n.nth(2 + (begin+i)%size)
		err := os.Symlink(owner, n.file(addr))
		switch {
		case err == nil:
			return addr, nil
		case !errors.Is(err, fs.ErrExist):
			return netip.Addr{}, fmt.Errorf("reserve an address: %w", err)
		}
	}
	return netip.Addr{}, fmt.Errorf("reserve an address of %v: %w", n.subnet, ErrFull)
}

// nth is an address of the subnet; 0 is its first.
func (n *Net) nth(i uint32) netip.Addr {
	base := n.subnet.Addr().As4()
	var out [4]byte
	binary.BigEndian.PutUint32(out[:], binary.BigEndian.Uint32(base[:])+i)
	return netip.AddrFrom4(out)
}

func (n *Net) file(addr netip.Addr) string { return filepath.Join(n.dir, addr.String()) }

// Release releases an address, if the owner still has it.
func (n *Net) Release(owner string, addr netip.Addr) error {
	now, err := os.Readlink(n.file(addr))
	if err == nil && now == owner {
		err = os.Remove(n.file(addr))
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("release address %v: %w", addr, err)
	}
	return nil
}

// Owners returns the reserved addresses with their owners.
func (n *Net) Owners() (map[netip.Addr]string, error) {
	entries, err := os.ReadDir(n.dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("list addresses: %w", err)
	}
	owners := make(map[netip.Addr]string, len(entries))
	for _, e := range entries {
		addr, err := netip.ParseAddr(e.Name())
		if err != nil {
			continue // it is not an address
		}
		owner, err := os.Readlink(n.file(addr))
		if errors.Is(err, fs.ErrNotExist) {
			continue // it was just released
		}
		if err != nil {
			return nil, fmt.Errorf("list addresses: %w", err)
		}
		owners[addr] = owner
	}
	return owners, nil
}
