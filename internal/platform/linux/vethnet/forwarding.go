package vethnet

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// A packet is forwarded if its input device has forwarding enabled
// (Documentation/networking/ip-sysctl.rst, conf/interface/forwarding). If forwarding
// is on for all devices, the host is a router already and nothing is changed. If it
// is off, only the devices on which replies arrive are enabled, and the table drops
// packets that are not for the bridge. A program that enables forwarding for all
// devices later, like Docker, finds that setting unchanged.

// allDevices is the name that stands for all devices.
const allDevices = "all"

// sysctl is the file of a device's forwarding setting.
func sysctl(name string) string {
	return filepath.Join("/proc/sys/net/ipv4/conf", name, "forwarding")
}

// forwards reports whether a device forwards. One that is gone does not.
func forwards(name string) (bool, error) {
	text, err := os.ReadFile(sysctl(name))
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	return strings.TrimSpace(string(text)) != "0", nil
}

func setForwarding(name, to string) error {
	err := os.WriteFile(sysctl(name), []byte(to), 0)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENODEV) {
		return nil // the device is gone
	}
	return err
}

// plan computes the content of the sets; before are the devices that are enabled.
func (w *natRules) plan(before []string) (devices, error) {
	links, err := dump(netlink.LinkList)
	if err != nil {
		return devices{}, fmt.Errorf("list devices: %w", err)
	}
	now := devices{uplinks: uplinkBridges(links, w.bridge)}
	router, err := forwards(allDevices)
	if err != nil || router {
		return now, err
	}
	for _, l := range links {
		name := l.Attrs().Name
		switch {
		case name == w.bridge, l.Attrs().MasterIndex != 0, l.Type() == "bridge" && !slices.Contains(now.uplinks, name):
			continue
		case slices.Contains(before, name):
			now.turnedOn = append(now.turnedOn, name)
			continue
		}
		on, err := needsForwarding(l)
		if err != nil {
			return now, err
		}
		if on {
			now.turnedOn = append(now.turnedOn, name)
		}
	}
	slices.Sort(now.turnedOn)
	return now, nil
}

// dump calls ask, and repeats it if a change has interrupted it.
func dump[T any](ask func() ([]T, error)) (list []T, err error) {
	for range 20 {
		if list, err = ask(); !errors.Is(err, netlink.ErrDumpInterrupted) {
			return list, err
		}
	}
	return nil, err
}

// needsForwarding reports whether a device has an address and does not forward yet.
func needsForwarding(l netlink.Link) (bool, error) {
	if l.Attrs().Name == "lo" {
		return false, nil
	}
	addrs, err := dump(func() ([]netlink.Addr, error) { return netlink.AddrList(l, netlink.FAMILY_V4) })
	if missing := (netlink.LinkNotFoundError{}); errors.As(err, &missing) || errors.Is(err, unix.ENODEV) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("list the addresses of %s: %w", l.Attrs().Name, err)
	}
	if len(addrs) == 0 {
		return false, nil
	}
	on, err := forwards(l.Attrs().Name)
	return err == nil && !on, err
}

// uplinkBridges returns the other bridges that have a port of a kind that containers and
// virtual machines do not use.
func uplinkBridges(links []netlink.Link, own string) []string {
	bridges := map[int]string{}
	for _, l := range links {
		if l.Type() == "bridge" && l.Attrs().Name != own {
			bridges[l.Attrs().Index] = l.Attrs().Name
		}
	}
	var out []string
	for _, l := range links {
		name := bridges[l.Attrs().MasterIndex]
		if name != "" && l.Type() != "veth" && l.Type() != "tuntap" && !slices.Contains(out, name) {
			out = append(out, name)
		}
	}
	slices.Sort(out)
	return out
}

// turnOn enables forwarding on devices and on the bridge.
func (w *natRules) turnOn(names []string) error {
	for _, name := range append([]string{w.bridge}, names...) {
		on, err := forwards(name)
		if err == nil && !on {
			err = setForwarding(name, "1")
		}
		if err != nil {
			return fmt.Errorf("turn on forwarding: %w", err)
		}
	}
	return nil
}

// turnOff undoes turnOn, unless the host has become a router.
func (w *natRules) turnOff(names []string) error {
	router, err := forwards(allDevices)
	if err != nil || router {
		return err
	}
	for _, name := range append(names, w.bridge) {
		if err := setForwarding(name, "0"); err != nil {
			return fmt.Errorf("turn off forwarding: %w", err)
		}
	}
	return nil
}
