package kubetest

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"holdfast/internal/hosts/kube"
)

// Proxy is in front of the API server. It counts requests and injects the faults of a test.
// Any goroutine may call its methods.
type Proxy struct {
	s      *Server
	server *httptest.Server
	ended  chan struct{}

	mu    sync.Mutex
	fault func(*http.Request) Fault
	seen  []Request
}

// Request is a received request.
type Request struct {
	At     time.Time
	Method string
	Path   string
	Fault  Fault
}

// Fault is the fault of a request. The zero value passes the request on.
type Fault struct {
	Code   int // status of the proxy's own answer; 0: none
	Reason string
	Retry  int  // seconds of Retry-After
	Gone   bool // the connection is closed without an answer, and the API server gets no request
	Lost   bool // the API server executes the request, and its answer is lost
	Silent bool // the request gets no answer, and the connection stays open
}

// Fails reports whether the caller sees the fault.
func (f Fault) Fails() bool { return f != Fault{} }

type faultKey struct{}

var errLost = errors.New("as the test wants it")

// Proxy starts a proxy, until the test ends.
func (s *Server) Proxy(t testing.TB) *Proxy {
	t.Helper()
	target, err := url.Parse(s.URL)
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(s.Config().CA)
	p := &Proxy{s: s, ended: make(chan struct{})}
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}, ForceAttemptHTTP2: true}
	pass := &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(target) }, FlushInterval: -1, Transport: transport,
		ModifyResponse: func(r *http.Response) error {
			if f, ok := r.Request.Context().Value(faultKey{}).(Fault); ok && f.Lost {
				_, _ = io.Copy(io.Discard, r.Body) // the answer is lost on purpose
				return errLost
			}
			return nil
		},
		ErrorHandler: func(http.ResponseWriter, *http.Request, error) { panic(http.ErrAbortHandler) },
		ErrorLog:     log.New(io.Discard, "", 0),
	}
	p.server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { p.serve(w, r, pass) }))
	p.server.EnableHTTP2 = true
	p.server.Config.ErrorLog = log.New(io.Discard, "", 0)
	p.server.StartTLS()
	t.Cleanup(func() {
		close(p.ended)
		p.server.Close()
		transport.CloseIdleConnections()
	})
	return p
}

func (p *Proxy) serve(w http.ResponseWriter, r *http.Request, pass http.Handler) {
	p.mu.Lock()
	var f Fault
	if p.fault != nil {
		f = p.fault(r)
	}
	p.seen = append(p.seen, Request{At: time.Now(), Method: r.Method, Path: r.URL.Path, Fault: f})
	p.mu.Unlock()
	switch {
	case f.Silent:
		select {
		case <-p.ended:
		case <-r.Context().Done():
		}
		panic(http.ErrAbortHandler)
	case f.Gone:
		panic(http.ErrAbortHandler)
	case f.Code > 0:
		if f.Retry > 0 {
			w.Header().Set("Retry-After", fmt.Sprint(f.Retry))
		}
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(f.Code)
		fmt.Fprintf(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","code":%d,"reason":%q,"message":"as the test wants it"}`, f.Code, f.Reason)
	default:
		pass.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), faultKey{}, f)))
	}
}

// Break injects faults into requests from now on; nil passes all on. fault is called for one
// request at a time.
func (p *Proxy) Break(fault func(*http.Request) Fault) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.fault = fault
}

// Seen returns the requests since a time.
func (p *Proxy) Seen(since time.Time) []Request {
	p.mu.Lock()
	defer p.mu.Unlock()
	var list []Request
	for _, r := range p.seen {
		if !r.At.Before(since) {
			list = append(list, r)
		}
	}
	return list
}

func (p *Proxy) ca() []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: p.server.Certificate().Raw})
}

// Client returns an administrator's client that uses the proxy.
func (p *Proxy) Client(t testing.TB, o kube.Options) *kube.Client {
	t.Helper()
	conf := p.s.Config()
	conf.Server, conf.CA = p.server.URL, p.ca()
	c, err := kube.New(conf, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

// Kubeconfig writes an administrator's kubeconfig that uses the proxy.
func (p *Proxy) Kubeconfig(t testing.TB) string {
	t.Helper()
	ca := filepath.Join(t.TempDir(), "ca.crt")
	if err := os.WriteFile(ca, p.ca(), 0o600); err != nil {
		t.Fatal(err)
	}
	return p.s.kubeconfig(t, p.server.URL, ca)
}
