package agent

import (
	"context"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"

	"holdfast"
	"holdfast/internal/agent/process"
	"holdfast/internal/control/api"
	"holdfast/internal/control/config"
	"holdfast/internal/control/dashboard"
	"holdfast/internal/platform/tasks"
)

// serveAPI serves the API on the TCP listener, and the web pages unless they are
// switched off.
func (a *Agent) serveAPI(p *tasks.Stack, l net.Listener, o api.Options, routes func(api.Options) http.Handler) error {
	if !a.cfg.API.Dashboard {
		o.Logins = nil
		h := routes(o)
		p.Start("api", func(ctx context.Context) error { return api.Serve(ctx, l, h, a.log) })
		return nil
	}
	d, err := dashboard.New(dashboard.SourceOf(a.apiParts()), dashboard.Options{Access: o, API: routes(o), SessionURL: a.sessionURL, Metrics: a.metrics, Log: a.log})
	if err != nil {
		return err
	}
	p.Start("dashboard", d.Run)
	p.Start("api", func(ctx context.Context) error { return api.Serve(ctx, l, d.Handler(), a.log) })
	return nil
}

// sessionURL returns where a browser that sent r opens a session: the configured
// address, or the gateway under the name by which the browser reached this host, or the
// session's own name. It is "" if the gateway listens on loopback and the browser is on
// another host.
func (a *Agent) sessionURL(r *http.Request, key holdfast.SessionKey) string {
	g := a.cfg.Gateway
	label := g.HostLabel(key)
	if g.URL != "" {
		return urlOf(g.URL, key, label)
	}
	host, port, err := net.SplitHostPort(g.Listen)
	if err != nil {
		return ""
	}
	here := (&url.URL{Host: r.Host}).Hostname()
	if isLoopback(host) && !isLoopback(here) {
		return ""
	}
	u := url.URL{Scheme: strings.TrimSuffix(process.Scheme(g.CertFile), "://"), Host: net.JoinHostPort(here, port), Path: "/s/" + string(key) + "/"}
	if g.Domain != "" {
		if label == "" {
			return ""
		}
		u.Host, u.Path = net.JoinHostPort(label+"."+g.Domain, port), "/"
	}
	return u.String()
}

// urlOf fills in the configured address of a session: the label in the host name, the
// key elsewhere.
func urlOf(text string, key holdfast.SessionKey, label string) string {
	scheme, rest, _ := strings.Cut(text, "://")
	host, path, slash := strings.Cut(rest, "/")
	if strings.Contains(host, config.KeyInURL) && label == "" {
		return ""
	}
	if slash {
		path = "/" + path
	}
	return scheme + "://" + strings.ReplaceAll(host, config.KeyInURL, label) + strings.ReplaceAll(path, config.KeyInURL, string(key))
}

func isLoopback(host string) bool {
	ip, err := netip.ParseAddr(host)
	return err == nil && ip.IsLoopback() || strings.EqualFold(host, "localhost")
}
