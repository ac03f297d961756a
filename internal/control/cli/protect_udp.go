package cli

import (
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/spf13/pflag"

	"holdfast/internal/hosts/protect"
)

// udpFlags say whether datagrams are held.
type udpFlags struct {
	flows string
	limit time.Duration
}

// maxUDPFor limits --udp-for.
const maxUDPFor = time.Hour

// add adds the flags.
func (u *udpFlags) add(f *pflag.FlagSet) {
	f.StringVar(&u.flows, "udp", string(protect.NoDatagrams), "also hold the datagrams of UDP: none, flow, quic, or auto (quic if the server speaks it)")
	f.Lookup("udp").NoOptDefVal = string(protect.AutoFlows)
	f.DurationVar(&u.limit, "udp-for", 5*time.Minute, "longest time that known flows of UDP stay with an old server that runs on beside the new one")
}

// validate refuses invalid flags.
func (u *udpFlags) validate(container, check bool) error {
	switch {
	case !slices.Contains(texts(protect.AllFlows()), u.flows):
		return fmt.Errorf("--udp is %q, it must be none, auto, flow or quic", u.flows)
	case u.limit <= 0 || u.limit > maxUDPFor:
		return fmt.Errorf("--udp-for is %v, it must be over 0 and at most %v", u.limit, maxUDPFor)
	case u.flows != string(protect.NoDatagrams) && container:
		return fmt.Errorf("--udp does not work with --container")
	case u.flows != string(protect.NoDatagrams) && check:
		return fmt.Errorf("--check is about connections, and does not work with --udp")
	}
	return nil
}

// writeDatagrams says what became of held datagrams.
func writeDatagrams(w io.Writer, d protect.DatagramStats) {
	fmt.Fprintf(w, "held %s, the longest for %s", count(d.Held, "datagram"), inMs(d.Longest))
	if d.Lost > 0 {
		fmt.Fprintf(w, "; %d lost", d.Lost)
	}
	if d.Stays {
		fmt.Fprintf(w, "; known flows (%s) stay with the old server", d.Flows)
	}
	fmt.Fprintln(w)
}
