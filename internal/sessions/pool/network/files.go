package network

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"time"

	"holdfast/internal/platform/engine"
)

// etcFiles are the files that an engine shares between a container and those that join
// its network. Here each session has its own.
func etcFiles() []string { return []string{"hosts", "hostname", "resolv.conf"} }

// writeFiles writes the files of a network's session, and returns their mounts. The files
// belong to the session: its processes may change them, as with the engine's own.
func (p *Pool) writeFiles(h *hold, addr netip.Addr, hostname string) ([]engine.Mount, error) {
	dir := p.filesOf(addr)
	err := os.RemoveAll(dir) // of an earlier network with the address
	if err == nil {
		err = os.MkdirAll(dir, 0o700)
	}
	text := map[string]string{
		"hosts": h.hosts + addr.String() + "\t" + hostname + "\n", "hostname": hostname + "\n", "resolv.conf": h.resolv,
	}
	var mounts []engine.Mount
	for _, name := range etcFiles() {
		file := filepath.Join(dir, name)
		err = errors.Join(err, os.WriteFile(file, []byte(text[name]), 0o644))
		mounts = append(mounts, engine.Mount{Type: "bind", Source: file, Target: "/etc/" + name})
	}
	if err != nil {
		return nil, fmt.Errorf("write the files of network %v: %w", addr, err)
	}
	return mounts, nil
}

func (p *Pool) filesOf(addr netip.Addr) string {
	return filepath.Join(p.filesDir(), addr.String())
}

func (p *Pool) filesDir() string { return filepath.Join(p.cfg.Dir, "etc") }

// youngest is the least age of files that sweepFiles removes: a network's files are written
// a moment before the pool knows that it is used.
const youngest = time.Minute

// sweepFiles removes the files of networks that no longer exist.
func (p *Pool) sweepFiles() error {
	entries, err := os.ReadDir(p.filesDir())
	if errors.Is(err, os.ErrNotExist) || err == nil && len(entries) == 0 {
		return nil
	}
	if err != nil {
		return err
	}
	alive, err := p.deps.Net.Addresses()
	if err != nil {
		return err
	}
	keep := map[string]bool{}
	for _, a := range alive {
		keep[a.String()] = true
	}
	p.mu.Lock()
	for a := range p.used {
		keep[a.String()] = true
	}
	p.mu.Unlock()
	for _, e := range entries {
		info, statErr := e.Info()
		if statErr == nil && time.Since(info.ModTime()) > youngest && !keep[e.Name()] {
			err = errors.Join(err, os.RemoveAll(filepath.Join(p.filesDir(), e.Name())))
		}
	}
	return err
}

// readFiles reads the engine's own files of a holder: its name servers, and the names
// that each container has.
func (h *hold) readFiles() error {
	root, err := os.OpenRoot(fmt.Sprintf("/proc/%d/root", h.target.Pid()))
	if err != nil {
		return err
	}
	defer root.Close()
	resolv, err := root.ReadFile("etc/resolv.conf")
	if err != nil {
		return err
	}
	hosts, err := root.ReadFile("etc/hosts")
	if err != nil {
		return err
	}
	h.resolv = string(resolv)
	for line := range strings.Lines(string(hosts)) {
		if !strings.Contains(line, h.target.ID[:hostnameLen]) { // the holder's own name
			h.hosts += strings.TrimSuffix(line, "\n") + "\n"
		}
	}
	return nil
}

// hostnameLen is the length of the container id that an engine uses as the host name if
// none is given.
const hostnameLen = 12
