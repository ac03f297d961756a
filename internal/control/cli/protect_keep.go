package cli

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"holdfast/internal/hosts/protect/keep"
)

// keepFlags say whose connections are kept over a restart.
type keepFlags struct {
	clients string
	life    time.Duration
}

// maxKeepFor limits --keep-for.
const maxKeepFor = time.Hour

// add adds the flags. prefix begins their descriptions.
func (k *keepFlags) add(f *pflag.FlagSet, prefix string) {
	f.StringVar(&k.clients, "keep", string(keep.None), prefix+"whose HTTP/1 connections that are between two requests go on to the new server: none, idle (of all clients) or local (of clients on this host)")
	f.DurationVar(&k.life, "keep-for", 30*time.Second, prefix+"how long requests on kept connections are passed on; then each connection ends after its next answer, or when it is idle for so long")
}

// validate refuses invalid flags.
func (k *keepFlags) validate(drain time.Duration) error {
	if !slices.Contains(texts(keep.Words()), k.clients) {
		return fmt.Errorf("--keep is %q, it must be none, idle or local", k.clients)
	}
	if k.clients != string(keep.None) && drain == 0 {
		return fmt.Errorf("--keep needs a --drain over 0: it keeps connections whose requests are answered")
	}
	if k.life <= 0 || k.life > maxKeepFor {
		return fmt.Errorf("--keep-for is %v, it must be over 0 and at most %v", k.life, maxKeepFor)
	}
	return nil
}

// writeKept says what became of the old server's connections.
func writeKept(w io.Writer, r keep.Report) {
	parts := []string{"kept " + count(r.Kept, "connection")}
	if r.Stayed > 0 {
		parts = append(parts, fmt.Sprintf("%d stayed with the server", r.Stayed))
	}
	for _, why := range slices.Sorted(maps.Keys(r.Lost)) {
		parts = append(parts, fmt.Sprintf("%d ended: %s", r.Lost[why], why))
	}
	fmt.Fprintln(w, strings.Join(parts, ", "))
	for _, p := range r.Refused {
		fmt.Fprintf(w, "no connection to port %d was kept: %s\n", p.Port, clean(p.Why))
	}
}
