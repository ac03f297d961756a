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
	"time"
)

// pool is the directory of addresses: a file for each reserved address, with the
// owner's name in it. A file is made atomically by link(2), which fails if it exists.
type pool struct {
	dir     string
	subnet  netip.Prefix
	gateway netip.Addr
}

// maxOwner is the longest name of an owner in bytes.
const maxOwner = 128

// draftPrefix is the prefix of files that are not linked to an address yet.
const draftPrefix = ".draft-"

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
	draft, err := p.draft(owner)
	if err != nil {
		return netip.Addr{}, fmt.Errorf("reserve an address: %w", err)
	}
	defer os.Remove(draft)
	// Without the addresses of the net, the gateway and the broadcast.
	size := uint32(1)<<(32-p.subnet.Bits()) - 3
	begin := rand.Uint32N(size)
	for i := range size {
		addr := p.nth(2 + (begin+i)%size)
		err := os.Link(draft, p.file(addr))
		switch {
		case err == nil:
			return addr, nil
		case !errors.Is(err, fs.ErrExist):
			return netip.Addr{}, fmt.Errorf("reserve an address: %w", err)
		}
	}
	return netip.Addr{}, fmt.Errorf("reserve an address of %v: %w", p.subnet, ErrFull)
}

// draft makes a file with the owner's name, to be linked.
func (p pool) draft(owner string) (string, error) {
	f, err := os.CreateTemp(p.dir, draftPrefix)
	if err != nil {
		return "", err
	}
	_, err = f.WriteString(owner)
	if err = errors.Join(err, f.Close()); err != nil {
		return "", errors.Join(err, os.Remove(f.Name()))
	}
	return f.Name(), nil
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
	now, err := os.ReadFile(p.file(addr))
	if err == nil && string(now) == owner {
		err = os.Remove(p.file(addr))
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("release address %v: %w", addr, err)
	}
	return nil
}

// draftLife is the age from which on a draft is abandoned.
const draftLife = time.Minute

// dropDraft removes a draft that a killed process has left.
func (p pool) dropDraft(e fs.DirEntry) {
	fi, err := e.Info()
	if err == nil && strings.HasPrefix(e.Name(), draftPrefix) && time.Since(fi.ModTime()) > draftLife {
		_ = os.Remove(filepath.Join(p.dir, e.Name())) // the next call tries again
	}
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
			p.dropDraft(e)
			continue
		}
		owner, err := os.ReadFile(p.file(addr))
		if errors.Is(err, fs.ErrNotExist) {
			continue // it was just released
		}
		if err != nil {
			return nil, fmt.Errorf("list addresses: %w", err)
		}
		owners[addr] = string(owner)
	}
	return owners, nil
}
