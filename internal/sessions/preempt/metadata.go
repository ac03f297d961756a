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
)

// metadataIP is where all three clouds answer, at a link-local address that
// needs no name server.
const metadataIP = "http://169.254.169.254"

// maxBody bounds an answer, in bytes. The largest real one is Azure's list of
// events, of about 500 bytes each.
const maxBody = 256 << 10

// dialTimeout is generous for a service on the host below; where there is none,
// packets to its address often vanish.
const dialTimeout = 2 * time.Second

// newClient returns a client for metadata services. They are asked directly,
// never through a proxy, and they never redirect: a redirect comes from something
// else. Connections are not kept, so that nothing is left when a source ends.
func newClient() *http.Client {
	return &http.Client{
		Transport: &http.Transport{
			DialContext:       (&net.Dialer{Timeout: dialTimeout}).DialContext,
			DisableKeepAlives: true,
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// answer is what a metadata service said.
type answer struct {
	status int
	header http.Header
	body   []byte
}

// call makes one request within timeout. Any status is an answer.
func call(ctx context.Context, client *http.Client, timeout time.Duration, method, address string, header map[string]string, body string) (answer, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, address, strings.NewReader(body))
	if err != nil {
		return answer{}, err
	}
	for k, v := range header {
		req.Header.Set(k, v)
	}
	res, err := client.Do(req)
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

// sleep waits for d, or for ctx, whose error it returns.
func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}

// isTimeout reports whether no answer came in time.
func isTimeout(err error) bool {
	var t net.Error
	return errors.As(err, &t) && t.Timeout()
}
