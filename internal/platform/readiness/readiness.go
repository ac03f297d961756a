// Package readiness checks whether a server is ready.
package readiness

import (
	"context"
	"fmt"
	"net"
	"net/http"
)

// Probe checks the server at addr once. The server is ready if it accepts a connection
// and, unless path is "", answers a GET of path with a status below 400. Probe follows
// no redirect.
func Probe(ctx context.Context, d net.Dialer, addr, path string) error {
	conn, err := d.DialContext(ctx, "tcp", addr)
	if err != nil {
		return err
	}
	defer conn.Close()
	if path == "" {
		return nil
	}
	client := &http.Client{
		Transport: &http.Transport{
			DisableKeepAlives: true,
			DialContext:       func(context.Context, string, string) (net.Conn, error) { return conn, nil },
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	url := "http://" + addr + path
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	res, err := client.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	if res.StatusCode >= 400 {
		return fmt.Errorf("GET %s: %s", url, res.Status)
	}
	return nil
}
