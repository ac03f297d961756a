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

// pool is the directory of addresses: a symbolic link for each reserved address, whose
// target is the owner's name. symlink(2) makes a link with its target atomically, and
// fails if it exists.
type pool struct {
	dir    string
	subnet netip.Prefix
}

// maxOwner is the longest name of an owner in bytes.
const maxOwner = 128

// ErrFull means that all addresses are reserved.
var ErrFull = errors.New("no address is left")

// reserve begins at a random address, so that a released address is not soon reused:
// a client with the old route would reach the new owner.
func (p pool) reserve(owner string) (netip.Addr, error) {
	if owner == "" || len(owner) > maxOwner || strings.ContainsAny(owner, "\r\n") {
		return netip.Addr{}, fmt.Errorf("an address for %q: that is no owner", owner)
	}
	if err := os.MkdirAll(p.dir, 0o700); err != nil {
		return netip.Addr{}, fmt.Errorf("reserve an address: %w", err)
	}
	// Without the addresses of the net, the gateway and the broadcast.
	size := uint32(1)<<(32-p.subnet.Bits()) - 3
	begin := rand.Uint32N(size)
	for i := range size {
		addr := p.nth(2 + (begin+i)%size)
		err := os.Symlink(owner, p.file(addr))
		switch {
		case err == nil:
			return addr, nil
		case !errors.Is(err, fs.ErrExist):
			return netip.Addr{}, fmt.Errorf("reserve an address: %w", err)
		}
	}
	return netip.Addr{}, fmt.Errorf("reserve an address of %v: %w", p.subnet, ErrFull)
}

// nth is the n-th address of the subnet.
func (p pool) nth(n uint32) netip.Addr {
	base := p.subnet.Addr().As4()
	var out [4]byte
	binary.BigEndian.PutUint32(out[:], binary.BigEndian.Uint32(base[:])+n)
	return netip.AddrFrom4(out)
}

func (p pool) file(addr netip.Addr) string { return filepath.Join(p.dir, addr.String()) }

func (p pool) release(owner string, addr netip.Addr) error {
	now, err := os.Readlink(p.file(addr))
	if err == nil && now == owner {
		err = os.Remove(p.file(addr))
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("release address %v: %w", addr, err)
	}
	return nil
}

func (p pool) owners() (map[netip.Addr]string, error) {
	entries, err := os.ReadDir(p.dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("list addresses: %w", err)
	}
	owners := make(map[netip.Addr]string, len(entries))
	for _, e := range entries {
		addr, err := netip.ParseAddr(e.Name())
		if err != nil {
			continue // it is not an address
		}
		owner, err := os.Readlink(p.file(addr))
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
