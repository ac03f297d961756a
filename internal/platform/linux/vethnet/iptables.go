package vethnet

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"

	"github.com/coreos/go-iptables/iptables"
	"github.com/google/nftables"
	"golang.org/x/sys/unix"
)

// iptablesWait is how many seconds a change of iptables waits for others' changes.
const iptablesWait = 5

// tables are iptables, as far as this host has them. A packet has to pass all
// that look at it: where they drop what is forwarded unless a rule accepts it, as
// Docker has them do, our own table's word does not count. The rules go to the end
// of the chain: those that are there, Docker's and people's (DOCKER-USER), are
// asked first. There is no interface to iptables but the program.
type tables struct {
	comment string // marks our rules
}

// rules accept what our own table has let through.
func (t tables) rules(bridge string) [][]string {
	mark := []string{"-m", "comment", "--comment", t.comment, "-j", "ACCEPT"}
	return [][]string{
		slices.Concat([]string{"-i", bridge}, mark),
		slices.Concat([]string{"-o", bridge, "-m", "conntrack", "--ctstate", "RELATED,ESTABLISHED"}, mark),
	}
}

const filterTable, chainForward = "filter", "FORWARD"

// accept adds the rules where packets would be dropped without.
func (t tables) accept(bridge string) error {
	return t.each(func(ipt *iptables.IPTables) error {
		list, err := ipt.List(filterTable, chainForward)
		if err != nil || len(list) == 0 || strings.TrimSpace(list[0]) != "-P FORWARD DROP" {
			return err
		}
		for _, rule := range t.rules(bridge) {
			if err := ipt.AppendUnique(filterTable, chainForward, rule...); err != nil {
				return err
			}
		}
		return nil
	})
}

// forget removes the rules.
func (t tables) forget(bridge string) error {
	return t.each(func(ipt *iptables.IPTables) error {
		var errs []error
		for _, rule := range t.rules(bridge) {
			errs = append(errs, ipt.DeleteIfExists(filterTable, chainForward, rule...))
		}
		return errors.Join(errs...)
	})
}

// each does something to those of the two kinds of iptables that are in use. One
// that is not is left alone: asking would load it.
func (t tables) each(do func(*iptables.IPTables) error) error {
	var errs []error
	for _, kind := range []struct {
		inUse   func() (bool, error)
		program string
	}{{inUseOnNftables, "iptables-nft"}, {inUseByItself, "iptables-legacy"}} {
		used, err := kind.inUse()
		if err != nil {
			errs = append(errs, err)
		}
		if !used {
			continue
		}
		path, err := program(kind.program)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		ipt, err := iptables.New(iptables.Path(path), iptables.Timeout(iptablesWait))
		if err == nil {
			err = do(ipt)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("iptables: %w", err))
		}
	}
	return errors.Join(errs...)
}

// program is iptables of a kind; a host that has one kind only may have it under
// the common name.
func program(kind string) (string, error) {
	if path, err := exec.LookPath(kind); err == nil {
		return path, nil
	}
	return exec.LookPath("iptables")
}

// inUseOnNftables reports whether the chain is there that iptables-nft makes.
func inUseOnNftables() (bool, error) {
	c, err := nftables.New()
	if err != nil {
		return false, err
	}
	chain, err := c.ListChain(&nftables.Table{Family: nftables.TableFamilyIPv4, Name: filterTable}, chainForward)
	if err != nil && strings.Contains(err.Error(), unix.ENOENT.Error()) { // the library keeps the text only
		return false, nil
	}
	return err == nil && chain.Hooknum != nil, err
}

// inUseByItself reports whether the kernel's own iptables filter anything.
func inUseByItself() (bool, error) {
	text, err := os.ReadFile("/proc/thread-self/net/ip_tables_names")
	if err != nil {
		return false, nil // the kernel has none
	}
	return slices.Contains(strings.Fields(string(text)), filterTable), nil
}
