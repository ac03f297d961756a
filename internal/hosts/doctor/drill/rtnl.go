package drill

import (
	"context"
	"errors"
	"fmt"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// rtnl is a program that continuously creates and removes network interfaces, in a
// network namespace of its own. The lock is shared by the whole kernel nevertheless.
func rtnl() Drill {
	return Drill{
		Name: "rtnl", Short: "a program that continuously creates and removes network interfaces", Rule: "kernel-lock",
		Size: 4, MaxSize: 32, Unit: "threads",
		parts: []part{{name: "churner", namespace: true, work: func(ctx context.Context, t Task, ready func()) error {
			ready()
			return threads(t.Size, func(i int) error { return churn(ctx, fmt.Sprintf("drill%d", i)) })
		}}},
	}
}

func churn(ctx context.Context, name string) error {
	h, err := netlink.NewHandle()
	if err != nil {
		return fmt.Errorf("open netlink: %w", err)
	}
	defer h.Close()
	link := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: name}, PeerName: name + "p"}
	for ctx.Err() == nil {
		err := h.LinkAdd(link)
		if err == nil {
			err = h.LinkDel(link)
		}
		if err != nil && !errors.Is(err, unix.EEXIST) {
			return fmt.Errorf("create and remove an interface: %w", err)
		}
	}
	return nil
}
