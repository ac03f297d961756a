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
	"github.com/google/nftables/expr"
	"github.com/google/nftables/xt"
	"golang.org/x/sys/unix"
)

// iptablesWait is the number of seconds that a change waits for the lock of iptables.
const iptablesWait = 5

// tables are the host's iptables, if it has them. A packet has to pass every table.
// If iptables drop forwarded packets by default, as with Docker, an accept in another
// table has no effect. The rules go to the end of the chain, after those of Docker
// and of operators (DOCKER-USER). The only interface to iptables is its program.
type tables struct {
	comment string // marks the rules of this package
}

// rules accept the packets that this package's own table has let through.
func (t tables) rules(bridge string) [][]string {
	mark := []string{"-m", "comment", "--comment", t.comment, "-j", "ACCEPT"}
	return [][]string{
		slices.Concat([]string{"-i", bridge}, mark),
		slices.Concat([]string{"-o", bridge, "-m", "conntrack", "--ctstate", "RELATED,ESTABLISHED"}, mark),
	}
}

const filterTable, chainForward = "filter", "FORWARD"

// accept adds the rules if packets would be dropped without them.
func (t tables) accept(bridge string) error {
	// The agent calls it every ten seconds: the program is started only for missing rules.
	missing := func() (bool, error) { return t.missing(bridge) }
	return each(missing, func(ipt *iptables.IPTables) error {
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

// remove removes the rules.
func (t tables) remove(bridge string) error {
	return each(nftablesInUse, func(ipt *iptables.IPTables) error {
		var errs []error
		for _, rule := range t.rules(bridge) {
			errs = append(errs, ipt.DeleteIfExists(filterTable, chainForward, rule...))
		}
		return errors.Join(errs...)
	})
}

// each calls do for the kinds of iptables that are in use; of iptables-nft, if nft reports
// true. It leaves the others alone, because a query would load their modules.
func each(nft func() (bool, error), do func(*iptables.IPTables) error) error {
	var errs []error
	for _, kind := range []struct {
		inUse   func() (bool, error)
		program string
	}{{nft, "iptables-nft"}, {legacyInUse, "iptables-legacy"}} {
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

// program is the program of a kind of iptables. A host with one kind may have it
// under the common name.
func program(kind string) (string, error) {
	if path, err := exec.LookPath(kind); err == nil {
		return path, nil
	}
	return exec.LookPath("iptables")
}

// nftablesInUse reports whether the chain of iptables-nft exists.
func nftablesInUse() (bool, error) {
	c, err := nftables.New()
	if err != nil {
		return false, err
	}
	chain, err := nftablesChain(c)
	return chain != nil, err
}

// nftablesChain returns the chain of iptables-nft, nil if there is none.
func nftablesChain(c *nftables.Conn) (*nftables.Chain, error) {
	chain, err := c.ListChain(&nftables.Table{Family: nftables.TableFamilyIPv4, Name: filterTable}, chainForward)
	if err != nil && strings.Contains(err.Error(), unix.ENOENT.Error()) { // the library keeps only the text
		return nil, nil
	}
	if err != nil || chain.Hooknum == nil {
		return nil, err
	}
	return chain, nil
}

// missing reports whether iptables-nft drop forwarded packets by default, and do not have
// all rules of this package.
func (t tables) missing(bridge string) (bool, error) {
	c, err := nftables.New()
	if err != nil {
		return false, err
	}
	chain, err := nftablesChain(c)
	if err != nil || chain == nil || chain.Policy == nil || *chain.Policy != nftables.ChainPolicyDrop {
		return false, err
	}
	rules, err := c.GetRules(chain.Table, chain)
	if err != nil {
		return false, fmt.Errorf("list the rules of the chain %s: %w", chainForward, err)
	}
	own := 0
	for _, r := range rules {
		if slices.ContainsFunc(r.Exprs, t.marks) {
			own++
		}
	}
	return own < len(t.rules(bridge)), nil
}

// marks reports whether an expression is the comment of this package.
func (t tables) marks(e expr.Any) bool {
	m, ok := e.(*expr.Match)
	if !ok {
		return false
	}
	c, ok := m.Info.(*xt.Comment)
	return ok && string(*c) == t.comment
}

// legacyInUse reports whether the legacy iptables of the kernel have a filter
// table.
func legacyInUse() (bool, error) {
	text, err := os.ReadFile("/proc/thread-self/net/ip_tables_names")
	if err != nil {
		return false, nil // the kernel has no legacy iptables
	}
	return slices.Contains(strings.Fields(string(text)), filterTable), nil
}
