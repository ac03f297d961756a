package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"holdfast"
	"holdfast/internal/control/api/client"
	"holdfast/internal/platform/tasks"
)

const (
	// maxPairs is how many ports one command forwards.
	maxPairs = 64
	// maxForwarded is how many connections one command carries; further ones wait in the
	// kernel. An agent carries as many for all its callers.
	maxForwarded = 512
	// forwardAgain is how long a connection waits for an agent that is being replaced.
	forwardAgain = 10 * time.Second
)

func (a *app) sessionForward() *cobra.Command {
	var address string
	cmd := &cobra.Command{
		Use:   "forward KEY [LOCAL:]PORT...",
		Short: "Forward local ports to ports of a session",
		Long: "Listen on local ports, and carry each connection to a TCP port of the session's container, on whichever node it runs.\n" +
			"PORT listens on the same local port, LOCAL:PORT on another one, and :PORT on a free one. Any port of the container works.\n" +
			"A session that does not run is started, also for a later connection. Connections end when the session stops or moves;\n" +
			"new ones reach it at its new place. Ctrl-C ends forward and its connections.",
		Example: "  holdfast session forward alice 5432:5432\n  holdfast session forward alice 3000 :8080\n" +
			"  holdfast session forward alice 8080:80 --address 10.0.0.7",
		Args:              args(2, 1+maxPairs, "a session key and the ports"),
		ValidArgsFunction: onlyOne(a.completeKeys),
		RunE: func(cmd *cobra.Command, words []string) error {
			ip, err := forwardAddress(address)
			if err != nil {
				return usage(cmd, err)
			}
			pairs, err := portPairs(words[1:])
			if err != nil {
				return usage(cmd, err)
			}
			return a.withKey(cmd, words[0], noLimit, func(ctx context.Context, c *client.Client, key holdfast.SessionKey) error {
				f := forwarder{app: a, client: c, key: key}
				return f.run(ctx, ip, pairs)
			})
		},
	}
	cmd.Flags().StringVar(&address, "address", "127.0.0.1", "local IP address to listen on")
	return cmd
}

// forwardAddress reads --address.
func forwardAddress(text string) (netip.Addr, error) {
	if text == "localhost" {
		text = "127.0.0.1"
	}
	ip, err := netip.ParseAddr(text)
	if err != nil {
		return ip, fmt.Errorf("--address: %q is not an IP address", text)
	}
	return ip, nil
}

// portPair is a local port, 0 for a free one, and the container's.
type portPair struct{ local, remote uint16 }

// portPairs reads PORT, LOCAL:PORT and :PORT.
func portPairs(words []string) (pairs []portPair, err error) {
	for _, word := range words {
		local, remote, both := strings.Cut(word, ":")
		if !both {
			remote = local
		}
		r, err := strconv.ParseUint(remote, 10, 16)
		if err != nil || r == 0 {
			return nil, fmt.Errorf("%q is not a port, LOCAL:PORT or :PORT; a port is a number from 1 to 65535", word)
		}
		var l uint64
		if local != "" {
			if l, err = strconv.ParseUint(local, 10, 16); err != nil {
				return nil, fmt.Errorf("%q is not a port, LOCAL:PORT or :PORT; a port is a number from 1 to 65535", word)
			}
		}
		pairs = append(pairs, portPair{uint16(l), uint16(r)})
	}
	return pairs, nil
}

// forwarding is a listening port in the output.
type forwarding struct {
	Listen  string              `json:"listen"`
	Session holdfast.SessionKey `json:"session"`
	Port    uint16              `json:"port"`

	ln net.Listener
}

// forwarder carries connections to the ports of a session.
type forwarder struct {
	*app
	client *client.Client
	key    holdfast.SessionKey
	errors sync.Mutex // one error is printed at a time
}

// run listens, starts the session, and carries connections until ctx is done.
func (f *forwarder) run(ctx context.Context, ip netip.Addr, pairs []portPair) error {
	all, err := f.listen(ctx, ip, pairs)
	defer func() {
		for _, one := range all {
			one.ln.Close()
		}
	}()
	if err != nil {
		return err
	}
	if !ip.IsLoopback() {
		f.ui.note("warning: every host that reaches %s can use the forwarded ports", ip)
	}
	if err := f.start(ctx); err != nil {
		return err
	}
	if err := f.ui.result(all, func(w io.Writer) {
		for _, one := range all {
			fmt.Fprintf(w, "Forwarding %s -> %s:%d\n", one.Listen, f.key, one.Port)
		}
	}); err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() {
		for _, one := range all {
			one.ln.Close()
		}
	})
	defer stop()
	var accepting sync.WaitGroup
	var carrying errgroup.Group
	carrying.SetLimit(maxForwarded)
	for _, one := range all {
		accepting.Go(func() { f.accept(ctx, one, &carrying) })
	}
	accepting.Wait()
	_ = carrying.Wait()
	if ctx.Err() == nil {
		return errors.New("no port is forwarded any more")
	}
	return nil
}

func (f *forwarder) listen(ctx context.Context, ip netip.Addr, pairs []portPair) (all []forwarding, err error) {
	var l net.ListenConfig
	for _, p := range pairs {
		at := netip.AddrPortFrom(ip, p.local).String()
		ln, err := l.Listen(ctx, "tcp", at)
		if err != nil {
			return all, holdfast.WithHint(fmt.Errorf("forwarding %s to port %d: %w", at, p.remote, err), fmt.Sprintf(":%d takes a free local port", p.remote))
		}
		all = append(all, forwarding{ln.Addr().String(), f.key, p.remote, ln})
	}
	return all, nil
}

// start starts the session, unless it runs.
func (f *forwarder) start(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, startLimit)
	defer cancel()
	_, err := f.client.StartSession(ctx, f.key, "")
	return err
}

// accept carries the connections to one port until its listener is closed.
func (f *forwarder) accept(ctx context.Context, one forwarding, carrying *errgroup.Group) {
	for {
		conn, err := one.ln.Accept()
		if err != nil {
			if ctx.Err() == nil {
				f.report(fmt.Errorf("accepting connections at %s: %w", one.Listen, err))
			}
			return
		}
		carrying.Go(func() error {
			f.carry(ctx, conn.(*net.TCPConn), int(one.Port))
			return nil
		})
	}
}

// carry serves one connection. A connection that failed is reset, so that its program
// sees that the stream is not whole.
func (f *forwarder) carry(ctx context.Context, conn *net.TCPConn, port int) {
	defer conn.Close()
	to, err := f.dial(ctx, port)
	if err == nil {
		err = to.Carry(ctx, conn)
	}
	if err != nil {
		_ = conn.SetLinger(0)
		if ctx.Err() == nil {
			f.report(fmt.Errorf("port %d: %w", port, err))
		}
	}
}

// dial connects to the port. It starts the session if no node has it, and waits for an
// agent that is being replaced.
func (f *forwarder) dial(ctx context.Context, port int) (*client.Port, error) {
	started := false
	for begin := time.Now(); ; {
		to, err := f.client.DialPort(ctx, f.key, port)
		switch {
		case errors.Is(err, holdfast.ErrNotFound) && !started:
			started = true
			if err := f.start(ctx); err != nil {
				return nil, err
			}
			continue
		case !errors.Is(err, client.ErrUnreachable) || ctx.Err() != nil || time.Since(begin) > forwardAgain:
			return to, err
		}
		if tasks.Sleep(ctx, 100*time.Millisecond) != nil {
			return nil, ctx.Err()
		}
	}
}

func (f *forwarder) report(err error) {
	f.errors.Lock()
	defer f.errors.Unlock()
	f.ui.fail(err)
}
