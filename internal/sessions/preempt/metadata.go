package preempt

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"holdfast/internal/platform/tasks"
)

// metadataIP is the address of the metadata service in all three clouds. It is
// link-local and needs no name server.
const metadataIP = "http://169.254.169.254"

// maxBody is the maximum size of an answer in bytes. The largest real answer is
// Azure's list of events, at about 500 bytes for each event.
const maxBody = 256 << 10

// dialTimeout is generous, because the service runs on the physical host. Outside a
// cloud, packets to its address are often dropped silently.
const dialTimeout = 2 * time.Second

// newClient returns a client for one request to a metadata service. It uses no proxy,
// and follows no redirect, because metadata services do not redirect. It keeps no
// connections, so that a source leaves nothing behind when it ends.
func newClient() *http.Client {
	return &http.Client{
		Transport: &http.Transport{
			DialContext:       (&net.Dialer{Timeout: dialTimeout}).DialContext,
			DisableKeepAlives: true,
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// answer is the answer of a metadata service.
type answer struct {
	status int
	header http.Header
	body   []byte
}

// call makes one request within timeout. An answer with any status is no error.
func call(ctx context.Context, timeout time.Duration, method, address string, header map[string]string, body string) (answer, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, address, strings.NewReader(body))
	if err != nil {
		return answer{}, err
	}
	for k, v := range header {
		req.Header.Set(k, v)
	}
	res, err := newClient().Do(req)
	if err != nil {
		return answer{}, err
	}
	defer func() { _ = res.Body.Close() }()
	text, err := io.ReadAll(io.LimitReader(res.Body, maxBody+1))
	if err != nil {
		return answer{}, fmt.Errorf("%s %s: %w", method, address, err)
	}
	if len(text) > maxBody {
		return answer{}, fmt.Errorf("%s %s: the answer is over %d bytes", method, address, maxBody)
	}
	return answer{res.StatusCode, res.Header, text}, nil
}

// checkEndpoint checks the base address of a metadata service.
func checkEndpoint(address string) error {
	u, err := url.Parse(address)
	switch {
	case err != nil:
		return err
	case u.Scheme != "http" && u.Scheme != "https", u.Host == "":
		return fmt.Errorf("%q is not http://host or https://host", address)
	case strings.Trim(u.Path, "/") != "" || u.RawQuery != "" || u.Fragment != "" || u.User != nil:
		return fmt.Errorf("%q has more than a scheme and a host", address)
	}
	return nil
}

// repeat calls read at intervals of pause and passes the notices to report. It
// returns the first error of read, or that of ctx.
func repeat(ctx context.Context, pause time.Duration, report func(...Notice), read func() ([]Notice, error)) error {
	for {
		now, err := read()
		if err != nil {
			return err
		}
		report(now...)
		if err := tasks.Sleep(ctx, pause); err != nil {
			return err
		}
	}
}

// isTimeout reports whether err is a timeout of the network.
func isTimeout(err error) bool {
	var t net.Error
	return errors.As(err, &t) && t.Timeout()
}
