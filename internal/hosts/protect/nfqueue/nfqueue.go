// Package nfqueue holds connections by their first packet: a rule of nftables
// sends the SYNs to a queue that this process serves, and they wait there for their
// verdict. It also works for ports that are forwarded to another namespace, and needs
// neither BPF nor a listener. While the server is down, connects wait.
//
// The rule and the queue end with the process. A SYN that waits at that time is lost,
// and its client sends it again after a second. New SYNs pass (bypass). Before Linux
// 5.12 the rule stays until Tidy, and packets bypass the queue that no process serves.
package nfqueue

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"sync"

	"golang.org/x/sys/unix"

	"holdfast/internal/hosts/protect"
	"holdfast/internal/platform/linux/nfqueue"
	"holdfast/internal/platform/linux/nft"
)

// priority makes the rule run before connection tracking rewrites addresses
// (NF_IP_PRI_NAT_DST, -100), and before every filter.
const priority = -150

// Backend is the backend nfqueue. Its methods may be called from any goroutine.
type Backend struct {
	mu  sync.Mutex
	way nft.Way // supported by the kernel; "" until one was tried

	unowned bool // tables as on kernels before 5.12; for a test
}

// New returns the backend.
func New() *Backend { return &Backend{} }

// Name returns nfqueue.
func (*Backend) Name() protect.Name { return protect.NFQueue }

// Probe opens a queue. It creates and removes a table with a rule for port 0, which
// matches no packet.
func (b *Backend) Probe(_ context.Context, t protect.Target) error {
	if _, err := t.Serving(); err != nil {
		return err
	}
	return b.try()
}

func (b *Backend) try() error {
	q, err := nfqueue.Open(firstQueue)
	if err != nil {
		return explain(err)
	}
	name := fmt.Sprintf("holdfast-probe-%d", os.Getpid())
	table, err := b.table(spec(protect.Target{Addresses: []protect.Address{{}}}, name, q.Num()))
	if err == nil {
		err = table.Remove()
	}
	return explain(errors.Join(err, q.Close()))
}

// Warm creates and removes a queue and such a table.
func (b *Backend) Warm() { _ = b.try() } // Hold reports the error

// firstQueue avoids the queue numbers that operators usually choose.
const firstQueue = 28771

// Hold opens a queue and then directs the SYNs to it.
func (b *Backend) Hold(_ context.Context, t protect.Target) (protect.Held, error) {
	q, err := nfqueue.Open(firstQueue)
	if err != nil {
		return nil, explain(err)
	}
	h := newHeld(t, q)
	h.serving.Go(h.serve)
	if h.table, err = b.table(spec(t, tableName(t), q.Num())); err != nil {
		return nil, errors.Join(explain(err), h.end())
	}
	return h, nil
}

// tableName returns the name of a target's table. It includes the pid, so that Tidy for
// a dead process never removes the table of a current hold.
func tableName(t protect.Target) string {
	return fmt.Sprintf("holdfast-protect-%d-%d", t.Addresses[0].Port, os.Getpid())
}

// Tidy removes the table of a killed process.
func (*Backend) Tidy(_ context.Context, _ protect.Target, left string) error { return nft.Delete(left) }

// table creates a table with the first interface that the kernel supports, the native one
// first.
func (b *Backend) table(s nft.Spec) (*nft.Table, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	s.Unowned = b.unowned
	ways := []nft.Way{nft.Native, nft.Compat}
	if b.way != "" {
		ways = []nft.Way{b.way}
	}
	var err error
	for _, w := range ways {
		s.Way = w
		t, e := nft.Add(s)
		if e == nil {
			b.way = w
			return t, nil
		}
		err = errors.Join(err, e)
		if !errors.Is(e, fs.ErrNotExist) {
			break
		}
	}
	return nil, err
}

func spec(t protect.Target, name string, queue uint16) nft.Spec {
	s := nft.Spec{Name: name, Priority: priority, Queue: queue, Hooks: []nft.Hook{nft.Input}}
	if t.Forwarded {
		// The packets of local clients pass no hook before routing.
		s.Hooks = []nft.Hook{nft.Prerouting, nft.Output}
	}
	for _, a := range t.Addresses {
		s.Matches = append(s.Matches, nft.Match(a))
	}
	return s
}

// explain describes kernel errors in words.
func explain(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, unix.EPERM):
		return fmt.Errorf("it needs root (CAP_NET_ADMIN): %w", err)
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.EPROTONOSUPPORT), errors.Is(err, unix.EINVAL), errors.Is(err, unix.EOPNOTSUPP):
		return fmt.Errorf("the kernel has no nftables, or no netfilter queue: %w", err)
	}
	return err
}
