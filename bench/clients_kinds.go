package bench

import (
	"bufio"
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"golang.org/x/sys/unix"
)

const (
	// flooders is the number of clients that send as much as they can.
	flooders = 10
	// dripPause is the time between two octets of a slow client.
	dripPause = 5 * time.Second
	// dialers is the number of clients that connect at once.
	dialers = 64
	// bigPage is the length of the response that slow readers do not read.
	bigPage = 128 << 10
	// pageText is the response to other requests.
	pageText = "served"
)

// clientKind is a kind of clients.
type clientKind struct {
	name  string
	tls   bool
	http2 bool
	files int // that the gateway has open for each client
	share int // divides the number of clients; 0 means flooders
	// begin brings a connection into its state, and hold keeps it there until it ends.
	begin func(c net.Conn) error
	hold  func(c net.Conn)
}

func (c clientKind) number(clients int) int {
	if c.share == 0 {
		return flooders
	}
	return clients / c.share
}

const getHead = "GET /s/crowd/ HTTP/1.1\r\nHost: localhost\r\n"

func clientKinds() []clientKind {
	return []clientKind{
		{name: "idle, HTTP/1.1", files: 1, share: 1, begin: idleRequest},
		{name: "idle, HTTP/1.1 with TLS", tls: true, files: 1, share: 1, begin: idleRequest},
		{name: "idle, HTTP/2", tls: true, http2: true, files: 1, share: 1, begin: idleHTTP2},
		{name: "idle, WebSocket", files: 2, share: 1, begin: idleWebSocket},
		{name: "idle, WebSocket with TLS", tls: true, files: 2, share: 1, begin: idleWebSocket},
		{name: "slow header", files: 1, share: 1, begin: begun(getHead + "X: "), hold: drip},
		{name: "slow body", files: 2, share: 1, begin: begun("POST /s/crowd/read HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100000\r\n\r\nx"), hold: drip},
		{name: "slow reader", files: 2, share: 10, begin: begun("GET /s/crowd/big HTTP/1.1\r\nHost: localhost\r\n\r\n")},
		{name: "1 request at once each", tls: true, http2: true, begin: startHTTP2, hold: ordinary(1)},
		{name: "250 requests at once each", tls: true, http2: true, begin: startHTTP2, hold: ordinary(250)},
		{name: "rapid reset", tls: true, http2: true, begin: startHTTP2, hold: rapidReset},
		{name: "CONTINUATION flood", tls: true, http2: true, begin: startHTTP2, hold: continuationFlood},
	}
}

// holdClients is the process of n clients of a gateway: the name of their kind, the
// gateway's address and n are the arguments. It returns when ctx is done.
func holdClients(ctx context.Context, args []string, out io.Writer) error {
	n, err := strconv.Atoi(args[2])
	if err != nil {
		return err
	}
	kinds := clientKinds()
	i := slices.IndexFunc(kinds, func(c clientKind) bool { return c.name == args[0] })
	if i < 0 {
		return fmt.Errorf("there are no clients of the kind %q", args[0])
	}
	slots := make(chan struct{}, dialers)
	begun := make(chan error, n)
	for range n {
		go kinds[i].member(ctx, args[1], slots, begun) // ends with the process
	}
	for range n {
		if err := <-begun; err != nil {
			return err
		}
	}
	fmt.Fprintln(out, "connected")
	<-ctx.Done()
	return nil
}

// member is one client. It connects again when its connection ends.
func (c clientKind) member(ctx context.Context, address string, slots chan struct{}, begun chan<- error) {
	first := sync.OnceFunc(func() { begun <- nil })
	for ctx.Err() == nil {
		slots <- struct{}{}
		conn, err := c.connect(ctx, address)
		<-slots
		if err != nil {
			if ctx.Err() == nil {
				select {
				case begun <- err:
				default:
				}
				return
			}
			break
		}
		first()
		end := context.AfterFunc(ctx, func() { conn.Close() })
		if c.hold != nil {
			c.hold(conn)
		} else {
			<-ctx.Done()
		}
		end()
		conn.Close()
	}
	first()
}

// connect opens a connection and begins. Its end is a reset, which occupies no port.
func (c clientKind) connect(ctx context.Context, address string) (net.Conn, error) {
	d := net.Dialer{Timeout: echoTimeout, Control: smallWindow}
	conn, err := d.DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	_ = conn.(*net.TCPConn).SetLinger(0)
	conn.SetDeadline(time.Now().Add(3 * echoTimeout))
	if c.tls {
		config := anyCertificate()
		if c.http2 {
			config.NextProtos = []string{"h2"}
		}
		conn = tls.Client(conn, config)
	}
	if err := c.begin(conn); err != nil {
		conn.Close()
		return nil, err
	}
	conn.SetDeadline(time.Time{})
	return conn, nil
}

// smallWindow makes the kernel hold little of a response that is not read.
func smallWindow(_, _ string, raw syscall.RawConn) error {
	return raw.Control(func(fd uintptr) { _ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUF, 4096) })
}

// begun sends the beginning of a request.
func begun(head string) func(net.Conn) error {
	return func(c net.Conn) error {
		_, err := io.WriteString(c, head)
		return err
	}
}

// drip sends an octet now and then, until the gateway ends the connection.
func drip(c net.Conn) {
	for {
		time.Sleep(dripPause)
		if _, err := io.WriteString(c, "x"); err != nil {
			return
		}
	}
}

// idleRequest makes one request, so that the connection is idle after it.
func idleRequest(c net.Conn) error {
	if _, err := io.WriteString(c, getHead+"\r\n"); err != nil {
		return err
	}
	resp, err := http.ReadResponse(bufio.NewReaderSize(c, 512), nil)
	if err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, resp.Body)
	return err
}

func idleWebSocket(c net.Conn) error {
	_, err := io.WriteString(c, getHead+"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n")
	if err != nil {
		return err
	}
	resp, err := http.ReadResponse(bufio.NewReaderSize(c, 512), nil)
	if err == nil && resp.StatusCode != http.StatusSwitchingProtocols {
		err = errors.New(resp.Status)
	}
	return err
}

// startHTTP2 sends the preface.
func startHTTP2(c net.Conn) error {
	if _, err := io.WriteString(c, http2.ClientPreface); err != nil {
		return err
	}
	return http2.NewFramer(c, c).WriteSettings()
}

// idleHTTP2 makes one request, so that the connection is idle after it.
func idleHTTP2(c net.Conn) error {
	if err := startHTTP2(c); err != nil {
		return err
	}
	f := newRequests(c)
	if err := f.get(1); err != nil {
		return err
	}
	for {
		got, err := f.ReadFrame()
		if err != nil {
			return err
		}
		if d, ok := got.(*http2.DataFrame); ok && d.StreamEnded() {
			return nil
		}
	}
}

// requests sends HTTP/2 requests.
type requests struct {
	*http2.Framer
	text bytes.Buffer
	enc  *hpack.Encoder
}

func newRequests(c net.Conn) *requests {
	r := &requests{Framer: http2.NewFramer(c, c)}
	r.enc = hpack.NewEncoder(&r.text)
	return r
}

func (r *requests) header() []byte {
	r.text.Reset()
	for _, f := range [][2]string{{":method", "GET"}, {":scheme", "https"}, {":authority", "localhost"}, {":path", "/s/crowd/"}} {
		_ = r.enc.WriteField(hpack.HeaderField{Name: f[0], Value: f[1]}) // a buffer fails no write
	}
	return r.text.Bytes()
}

func (r *requests) get(stream uint32) error {
	return r.WriteHeaders(http2.HeadersFrameParam{StreamID: stream, BlockFragment: r.header(), EndStream: true, EndHeaders: true})
}

// ordinary has n requests in progress.
func ordinary(n int) func(net.Conn) {
	return func(c net.Conn) {
		r := newRequests(c)
		stream := uint32(1)
		next := func() bool {
			err := r.get(stream)
			stream += 2
			return err == nil
		}
		for range n {
			if !next() {
				return
			}
		}
		for {
			got, err := r.ReadFrame()
			if err != nil {
				return
			}
			d, ok := got.(*http2.DataFrame)
			if ok && d.Length > 0 && r.WriteWindowUpdate(0, d.Length) != nil || ok && d.StreamEnded() && !next() {
				return
			}
		}
	}
}

// rapidReset resets each request at once.
func rapidReset(c net.Conn) {
	go io.Copy(io.Discard, c)
	r := newRequests(c)
	for stream := uint32(1); ; stream += 2 {
		if errors.Join(r.get(stream), r.WriteRSTStream(stream, http2.ErrCodeCancel)) != nil {
			return
		}
	}
}

// continuationFlood sends a header without an end.
func continuationFlood(c net.Conn) {
	go io.Copy(io.Discard, c)
	r := newRequests(c)
	err := r.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: r.header(), EndStream: true})
	more := bytes.Repeat([]byte("x"), 8<<10)
	for err == nil {
		r.text.Reset()
		_ = r.enc.WriteField(hpack.HeaderField{Name: "x", Value: string(more), Sensitive: true}) // a buffer fails no write
		err = r.WriteContinuation(1, false, r.text.Bytes())
	}
}

// servePages is the server of the sessions until ctx is done.
func servePages(ctx context.Context, ln net.Listener) error {
	srv := &http.Server{Handler: http.HandlerFunc(page)}
	defer context.AfterFunc(ctx, func() { srv.Close() })()
	if err := srv.Serve(ln); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

func page(w http.ResponseWriter, r *http.Request) {
	switch {
	case r.Header.Get("Upgrade") != "":
		conn, rw, err := http.NewResponseController(w).Hijack()
		if err != nil {
			return
		}
		defer conn.Close()
		fmt.Fprint(rw, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
		rw.Flush()
		io.Copy(io.Discard, rw)
	case r.URL.Path == "/read":
		io.Copy(io.Discard, r.Body)
	case r.URL.Path == "/big":
		w.Write(make([]byte, bigPage))
	default:
		io.WriteString(w, pageText)
	}
}

func anyCertificate() *tls.Config { return &tls.Config{InsecureSkipVerify: true} }

// writeCertificate writes a certificate that signs itself, and its key.
func writeCertificate(cert, key string) error {
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), DNSNames: []string{"localhost"}, NotAfter: time.Now().Add(24 * time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, private.Public(), private)
	if err != nil {
		return err
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		return err
	}
	return errors.Join(
		os.WriteFile(cert, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600),
		os.WriteFile(key, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: keyDER}), 0o600))
}
