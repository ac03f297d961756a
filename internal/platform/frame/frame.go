// Package frame is the protocol of an exec stream after its HTTP/1.1 connection was
// upgraded (RFC 9110, 7.8) to Protocol. A frame has a kind of one byte, a length of
// four bytes, big-endian, and a payload of that length, at most MaxPayload.
//
//	to the server:  Stdin (empty: end of input), Resize (JSON of api.Size)
//	to the client:  Stdout, Stderr, Ping (empty), Offset (JSON of Position), Exit (JSON of api.ExecExit),
//	                Event (lines of JSON of api.JobEvent)
//
// A forwarded port sends its bytes as Stdin and Stdout. There an empty Stdout is the end of
// the output, and Exit follows when both directions have ended.
//
// In the stream of a job, the payload of Stdout and Stderr begins with the index of the run,
// see Tagged. An empty Stdin stops the job. A long line of an Event is in several frames.
//
// A stream of a detached command begins with an Offset, and has another one wherever
// output was lost. The position of later output follows from the number of its bytes.
//
// Exit is the last frame. The server sends a Ping at intervals, which reveals a client
// that has disconnected while the stream is idle. The connection limits the bytes in
// flight: a side that does not read blocks the other side's writes.
package frame

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"sync"
	"time"
)

// Protocol is the token of the Upgrade header.
const Protocol = "holdfast-exec/1"

// Accept is the server's answer to a request for an upgrade. Frames follow it.
const Accept = "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: " + Protocol + "\r\n\r\n"

// Request makes r a request for an upgrade.
func Request(r *http.Request) {
	r.Header.Set("Connection", "Upgrade")
	r.Header.Set("Upgrade", Protocol)
}

// Upgraded returns the connection after the answer to a Request. It returns false, and closes
// the answer's body, if the server has not upgraded it.
func Upgraded(resp *http.Response) (io.ReadWriteCloser, bool) {
	conn, ok := resp.Body.(io.ReadWriteCloser)
	if ok = ok && resp.StatusCode == http.StatusSwitchingProtocols; !ok {
		resp.Body.Close()
	}
	return conn, ok
}

// MaxPayload is the largest payload of a frame, in bytes.
const MaxPayload = 32 << 10

// Kind is the content of a frame.
type Kind byte

// The kinds.
const (
	Stdin  Kind = 0
	Stdout Kind = 1
	Stderr Kind = 2
	Resize Kind = 3
	Exit   Kind = 4
	Ping   Kind = 5
	Offset Kind = 6
	Event  Kind = 7
)

// Position is the payload of Offset.
type Position struct {
	Offset int64 `json:"offset"` // of the next byte in all output of the command
	Lost   int64 `json:"lost"`   // bytes right before it that are no longer kept
}

const headerLen = 5

// Conn reads and writes frames.
type Conn struct {
	r  io.Reader
	in []byte

	mu  sync.Mutex // guards w and out
	w   io.Writer
	out []byte
}

// NewConn makes a Conn that reads from r and writes to w.
func NewConn(r io.Reader, w io.Writer) *Conn {
	return &Conn{r: r, w: w, in: make([]byte, MaxPayload), out: make([]byte, headerLen+MaxPayload)}
}

// Read returns the next frame. The payload is valid until the next Read. The error is
// io.EOF only between frames. One goroutine may read at a time.
func (c *Conn) Read() (Kind, []byte, error) {
	var h [headerLen]byte
	if _, err := io.ReadFull(c.r, h[:1]); err != nil {
		return 0, nil, err
	}
	if _, err := io.ReadFull(c.r, h[1:]); err != nil {
		return 0, nil, unexpected(err)
	}
	k, n := Kind(h[0]), binary.BigEndian.Uint32(h[1:])
	if k > Event {
		return 0, nil, fmt.Errorf("frame of unknown kind %d", k)
	}
	if n > MaxPayload {
		return 0, nil, fmt.Errorf("frame of %d bytes, at most %d are allowed", n, MaxPayload)
	}
	if _, err := io.ReadFull(c.r, c.in[:n]); err != nil {
		return 0, nil, unexpected(err)
	}
	return k, c.in[:n], nil
}

func unexpected(err error) error {
	if err == io.EOF {
		return io.ErrUnexpectedEOF
	}
	return err
}

// Write sends p as one frame, or as several if it is longer than MaxPayload. An empty p
// is also a frame. Any goroutine may call it.
func (c *Conn) Write(k Kind, p []byte) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	for {
		n := min(len(p), MaxPayload)
		c.out[0] = byte(k)
		binary.BigEndian.PutUint32(c.out[1:], uint32(n))
		copy(c.out[headerLen:], p[:n])
		if _, err := c.w.Write(c.out[:headerLen+n]); err != nil {
			return err
		}
		if p = p[n:]; len(p) == 0 {
			return nil
		}
	}
}

// WriteJSON sends v as a frame. Any goroutine may call it.
func (c *Conn) WriteJSON(k Kind, v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return c.Write(k, b)
}

// KeepAlive sends a Ping at intervals until ctx is done, and calls lost if that fails. A
// server that leaves its client's input unread does not notice otherwise that the client has
// disconnected.
func (c *Conn) KeepAlive(ctx context.Context, every time.Duration, lost func()) {
	t := time.NewTicker(every)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
			if c.Write(Ping, nil) != nil {
				lost()
				return
			}
		}
	}
}

// Writer returns a writer that sends its input as frames of kind k.
func (c *Conn) Writer(k Kind) io.Writer { return writer{c, k} }

type writer struct {
	c *Conn
	k Kind
}

func (w writer) Write(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	if err := w.c.Write(w.k, p); err != nil {
		return 0, err
	}
	return len(p), nil
}
