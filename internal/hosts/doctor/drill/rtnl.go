package drill

import (
	"context"
	"errors"
	"fmt"

	"github.com/vishvananda/netlink"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
)

// rtnl is a program that makes and removes network interfaces all the time, in a
// network namespace of its own: the lock is the whole kernel's all the same.
func rtnl() Drill {
	return Drill{
		Name: "rtnl", Short: "a program that makes and removes network interfaces all the time", Rule: "kernel-lock",
		Size: 4, MaxSize: 32, Unit: "threads",
		parts: []part{{name: "churner", namespace: true, work: func(ctx context.Context, t Task, ready func()) error {
			var g errgroup.Group
			for i := range t.Size {
				g.Go(func() error { return churn(ctx, fmt.Sprintf("drill%d", i)) })
			}
			ready()
			return g.Wait()
		}}},
	}
}

func churn(ctx context.Context, name string) error {
	h, err := netlink.NewHandle()
	if err != nil {
		return fmt.Errorf("talk netlink: %w", err)
	}
	defer h.Close()
	link := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: name}, PeerName: name + "p"}
	for ctx.Err() == nil {
		err := h.LinkAdd(link)
		if err == nil {
			err = h.LinkDel(link)
		}
		if err != nil && !errors.Is(err, unix.EEXIST) {
			return fmt.Errorf("make and remove an interface: %w", err)
		}
	}
	return nil
}
