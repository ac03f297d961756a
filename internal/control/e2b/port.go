package e2b

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httputil"
	"os"
	"strconv"

	"golang.org/x/sys/unix"

	"holdfast"
	"holdfast/internal/control/api"
)

// trafficHeader has the token of a sandbox whose ports are not public.
const trafficHeader = "E2b-Traffic-Access-Token"

// servePort passes a request on to a port of a sandbox.
func (d *Server) servePort(w http.ResponseWriter, r *http.Request, id string, port int) {
	s, err := d.sandboxes.find(r.Context(), id)
	switch t := d.template(s.Template); {
	case err != nil:
		err = ended(id)
	case s.Traffic != "" && !same(r.Header.Get(trafficHeader), s.Traffic):
		err = refuse(http.StatusForbidden, "the ports of this sandbox need the header %s", trafficHeader)
	case port != t.Port && !t.Ports.Allows(port):
		err = refuse(http.StatusForbidden, "the template %s does not list port %d; docs/ports.md", t.Name, port)
	default:
		s, err = d.running(r.Context(), id)
	}
	if err != nil {
		fail(w, err)
		return
	}
	proxy := &httputil.ReverseProxy{
		Transport: d.ports, FlushInterval: -1, ErrorLog: nil,
		Rewrite: func(p *httputil.ProxyRequest) {
			p.Out.URL.Scheme, p.Out.URL.Host = "http", net.JoinHostPort(s.ID, strconv.Itoa(port))
			p.Out.Host = p.In.Host
			p.SetXForwarded()
			for _, name := range []string{trafficHeader, idHeader, portHeader, "X-Access-Token", "X-Api-Key"} {
				p.Out.Header.Del(name)
			}
		},
		ErrorHandler: func(w http.ResponseWriter, r *http.Request, err error) {
			fail(w, d.portProblem(r.Context(), s, port, err))
		},
	}
	proxy.ServeHTTP(w, r)
}

// portProblem says why a port did not answer. The SDKs know the status 502.
func (d *Server) portProblem(ctx context.Context, s sandbox, port int, err error) error {
	if e, ok := errors.AsType[*api.Error](err); ok && e.Code == api.CodePortRefused {
		return refuse(http.StatusBadGateway, "The sandbox is running but port is not open: %d. %s", port, e.Advice)
	}
	if errors.Is(err, holdfast.ErrNotFound) || !d.lives(ctx, s) {
		return ended(s.ID)
	}
	return refuse(http.StatusBadGateway, "port %d: %v", port, err)
}

// dialPort connects to a port of a sandbox. addr is the id and the port.
func (d *Server) dialPort(ctx context.Context, _, addr string) (net.Conn, error) {
	id, text, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, err
	}
	port, err := strconv.Atoi(text)
	if err != nil {
		return nil, err
	}
	remote, err := d.o.Agent.DialPort(ctx, holdfast.SessionKey(id), port)
	if err != nil {
		return nil, err
	}
	near, far, err := socketPair()
	if err != nil {
		remote.Close()
		return nil, err
	}
	go func() {
		defer far.Close()
		_ = remote.Carry(d.life, far) // the end of the connection is the caller's to see
	}()
	return near, nil
}

// socketPair returns a connection of two directions, and its other end.
func socketPair() (near, far *net.UnixConn, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("socketpair: %w", err)
	}
	var ends [2]*net.UnixConn
	for i, fd := range fds {
		f := os.NewFile(uintptr(fd), "socketpair")
		c, connErr := net.FileConn(f) // it has a copy
		f.Close()
		if connErr != nil {
			err = connErr
			continue
		}
		ends[i] = c.(*net.UnixConn)
	}
	if err != nil {
		for _, c := range ends {
			if c != nil {
				c.Close()
			}
		}
		return nil, nil, err
	}
	return ends[0], ends[1], nil
}
