package registry

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"sync"
	"time"
)

// Faults are the faults that a proxy injects into blobs. The zero value injects none.
type Faults struct {
	// Rate is the maximum rate of all blobs together, in bytes per second; 0: no maximum.
	Rate float64
	// Delay precedes each answer with a blob.
	Delay time.Duration
	// Cut closes the connection after that many bytes of the blob with the digest, once
	// for each digest.
	Cut map[string]int64
	// Hold stops each blob after HoldAfter bytes until it is closed.
	Hold      <-chan struct{}
	HoldAfter int64
}

// Proxy forwards HTTP to a registry, and records what it forwards. Any goroutine may call
// its methods.
type Proxy struct {
	listener net.Listener
	server   *http.Server
	done     chan struct{}

	mu     sync.Mutex
	faults Faults
	cut    map[string]bool // digests whose connection was cut
	free   time.Time       // time at which the rate allows the next byte
	passed []Passed
}

// Passed is one forwarded blob.
type Passed struct {
	Blob        string // its digest
	Range       string // header of the request, "" for the whole blob
	Bytes       int64  // written towards the engine
	First, Last time.Time
	Cut         bool
}

// StartProxy starts a proxy for r.
func StartProxy(r *Registry) (*Proxy, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("start a proxy: %w", err)
	}
	p := &Proxy{listener: l, done: make(chan struct{}), cut: map[string]bool{}}
	transport := &http.Transport{}
	upstream := &httputil.ReverseProxy{
		Rewrite: func(pr *httputil.ProxyRequest) {
			pr.SetURL(&url.URL{Scheme: "http", Host: r.host})
		},
		Transport: transport,
	}
	p.server = &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if digest := blobOf(req.URL.Path); digest != "" && req.Method == http.MethodGet {
			pass := p.begin(req, digest)
			defer p.end(pass)
			upstream.ServeHTTP(&slow{ResponseWriter: w, proxy: p, pass: pass, ctx: req.Context()}, req)
			return
		}
		upstream.ServeHTTP(w, req)
	})}
	go func() {
		defer close(p.done)
		defer transport.CloseIdleConnections()
		_ = p.server.Serve(l) // it always returns http.ErrServerClosed
	}()
	return p, nil
}

// Host returns the proxy's host:port.
func (p *Proxy) Host() string { return p.listener.Addr().String() }

// Set changes the faults from now on. Each digest of Cut is cut once more.
func (p *Proxy) Set(f Faults) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.faults, p.cut, p.free = f, map[string]bool{}, time.Time{}
}

// Passed returns the blobs since the last call.
func (p *Proxy) Passed() []Passed {
	p.mu.Lock()
	defer p.mu.Unlock()
	out := p.passed
	p.passed = nil
	return out
}

// Stop ends the proxy and all connections. It must be the last call.
func (p *Proxy) Stop() error {
	err := p.server.Close()
	<-p.done
	return err
}

func (p *Proxy) begin(req *http.Request, digest string) *Passed {
	return &Passed{Blob: digest, Range: req.Header.Get("Range")}
}

func (p *Proxy) end(pass *Passed) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.passed = append(p.passed, *pass)
}

// slow writes a blob to the engine, with the faults.
type slow struct {
	http.ResponseWriter
	proxy *Proxy
	pass  *Passed
	ctx   context.Context
}

// Unwrap lets http.ResponseController flush.
func (s *slow) Unwrap() http.ResponseWriter { return s.ResponseWriter }

func (s *slow) WriteHeader(code int) {
	s.proxy.mu.Lock()
	delay := s.proxy.faults.Delay
	s.proxy.mu.Unlock()
	s.wait(delay)
	s.ResponseWriter.WriteHeader(code)
}

// piece is the size of one write. It is small compared with 10 ms of any rate.
const piece = 16 << 10

func (s *slow) Write(b []byte) (int, error) {
	written := 0
	for len(b) > 0 {
		n, pause, act := s.proxy.next(s.pass, min(len(b), piece))
		if act == hold {
			s.flush()
			select {
			case <-pause.until:
			case <-s.ctx.Done():
				return written, s.ctx.Err()
			}
			continue
		}
		if act == cut {
			s.flush()
			s.pass.Cut = true
			panic(http.ErrAbortHandler) // net/http then closes the connection
		}
		s.wait(pause.time)
		if s.pass.Bytes == 0 {
			s.pass.First = time.Now()
		}
		n, err := s.ResponseWriter.Write(b[:n])
		written += n
		s.pass.Bytes += int64(n)
		s.pass.Last = time.Now()
		if err != nil {
			return written, err
		}
		b = b[n:]
	}
	return written, nil
}

func (s *slow) flush() {
	if err := http.NewResponseController(s.ResponseWriter).Flush(); err != nil && !errors.Is(err, io.ErrClosedPipe) {
		return // the engine has closed the connection; the next write fails
	}
}

func (s *slow) wait(d time.Duration) {
	if d <= 0 {
		return
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-s.ctx.Done():
	}
}

type action int

const (
	write action = iota
	hold
	cut
)

type pause struct {
	time  time.Duration
	until <-chan struct{}
}

// next returns how many of the next n bytes of a blob may be written, and after which wait.
func (p *Proxy) next(pass *Passed, n int) (int, pause, action) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if after, ok := p.faults.Cut[pass.Blob]; ok && !p.cut[pass.Blob] {
		left := after - pass.Bytes
		if left <= 0 {
			p.cut[pass.Blob] = true
			return 0, pause{}, cut
		}
		n = int(min(int64(n), left))
	}
	if p.faults.Hold != nil {
		left := p.faults.HoldAfter - pass.Bytes
		select {
		case <-p.faults.Hold:
		default:
			if left <= 0 {
				return 0, pause{until: p.faults.Hold}, hold
			}
			n = int(min(int64(n), left))
		}
	}
	if p.faults.Rate <= 0 {
		return n, pause{}, write
	}
	now := time.Now()
	// The unused rate of the last 20 ms may be used now, so that a late timer does not
	// lower the rate.
	if floor := now.Add(-20 * time.Millisecond); p.free.Before(floor) {
		p.free = floor
	}
	p.free = p.free.Add(time.Duration(float64(n) / p.faults.Rate * float64(time.Second)))
	return n, pause{time: p.free.Sub(now)}, write
}
