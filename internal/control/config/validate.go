package config

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"strings"

	"holdfast"
	"holdfast/internal/hosts/doctor/schedule"
	"holdfast/internal/sessions/pool/network"
)

// Validate checks every value and their combinations. The error names the key by its
// path in the file.
func (c Config) Validate() error {
	return cmp.Or(c.validateHost(), c.Store.validate(), c.validateFleet(), c.Gateway.validate(), c.API.validate(), c.E2B.validate(), c.validateLimits(), c.validateTemplates(), c.validateExperiments())
}

// ValidateCollector is Validate for a collector that serves its metrics on the address
// of an agent's API.
func (c Config) ValidateCollector() error {
	return errors.Join(c.validateHost(), c.validateLimits(), c.API.validate())
}

func (c Config) validateHost() error {
	if len(c.Node) > 253 || strings.ContainsFunc(c.Node, func(r rune) bool { return r <= ' ' || r == '/' || r > '~' }) {
		return fmt.Errorf("node: %q is not a host name", c.Node)
	}
	return cmp.Or(absolute("data_dir", c.DataDir), absolute("run_dir", c.RunDir),
		oneOf("log.level", c.Log.Level, "debug", "info", "warn", "error"), oneOf("log.format", c.Log.Format, "text", "json"), c.Engine.validate())
}

func (e Engine) validate() error {
	if subnet, err := netip.ParsePrefix(e.Subnet); e.Subnet != "" && (err != nil || !subnet.Addr().Is4()) {
		return fmt.Errorf("engine.subnet: %q is not an IPv4 subnet such as 10.1.0.0/16", e.Subnet)
	}
	if e.Name != Containerd {
		return oneOf("engine.name", cmp.Or(e.Name, Docker), Docker, Containerd)
	}
	if e.Host != "" && !strings.HasPrefix(e.Host, "unix:///") {
		return fmt.Errorf("engine.host: containerd is at unix:///path, not at %q", e.Host)
	}
	for name, file := range e.Runtimes {
		if !runtimeName().MatchString(name) {
			return fmt.Errorf("engine.runtimes: %q is not a name of a runtime such as runsc", name)
		}
		if err := absolute("engine.runtimes: "+name, file); err != nil {
			return err
		}
	}
	return absoluteOrNone("engine.cgroup_parent", e.CgroupParent)
}

func (s Store) validate() error {
	if err := within("store: ", s.Timing().Validate()); err != nil {
		return err
	}
	if (s.CertFile == "") != (s.KeyFile == "") {
		return errors.New("store: cert_file and key_file go together")
	}
	if len(s.Endpoints) == 0 && (s.CAFile != "" || s.CertFile != "" || s.Username != "") {
		return errors.New("store: ca_file, cert_file, key_file and username need endpoints; the embedded store has none")
	}
	if (s.Username == "") != (s.PasswordFile == "") {
		return errors.New("store: username and password_file go together")
	}
	if slices.Contains(s.Endpoints, "") {
		return errors.New("store.endpoints: an endpoint is empty")
	}
	return absoluteOrNone("store.trace_file", s.TraceFile)
}

func (c Config) validateFleet() error {
	f := c.Fleet
	if f.Listen == "" {
		if f.Advertise != "" {
			return errors.New("fleet.advertise: needs fleet.listen")
		}
		return nil
	}
	if len(c.Store.Endpoints) == 0 {
		return holdfast.WithHint(errors.New("fleet.listen: an embedded store has no fleet"), "name the shared etcd with store.endpoints")
	}
	_, wrongListen := listenAddress("fleet.listen", f.Listen)
	_, wrongAdvertise := listenAddress("fleet.advertise", f.Advertise)
	if err := cmp.Or(absolute("fleet.certificates", f.Certificates), wrongListen, wrongAdvertise); err != nil {
		return err
	}
	host, port, _ := net.SplitHostPort(f.Advertise) // it was just split
	if ip, err := netip.ParseAddr(host); host == "" || port == "0" || err == nil && ip.IsUnspecified() {
		return holdfast.WithHint(fmt.Errorf("fleet.advertise: no node can connect to %s", f.Advertise), "name the address of this node for the other nodes")
	}
	return nil
}

func (g Gateway) validate() error {
	loopback, err := listenAddress("gateway.listen", g.Listen)
	if err != nil {
		return err
	}
	if !loopback && (g.CertFile == "" || g.TokensFile == "") {
		return holdfast.WithHint(fmt.Errorf("gateway.listen: %s is not a loopback address", g.Listen),
			"beyond loopback the gateway needs TLS and connect tokens: set gateway.cert_file, gateway.key_file and gateway.tokens_file")
	}
	if err := checkURL(g.URL); err != nil {
		return holdfast.WithHint(fmt.Errorf("gateway.url: %w", err), "such as https://"+KeyInURL+".sessions.example.org/ or https://sessions.example.org/s/"+KeyInURL+"/")
	}
	return g.Config.Validate()
}

// checkURL checks the address of a session for browsers; "" is valid.
func checkURL(text string) error {
	if text == "" {
		return nil
	}
	u, err := url.Parse(strings.ReplaceAll(text, KeyInURL, "key"))
	switch {
	case err != nil:
		return fmt.Errorf("%q is not a URL", text)
	case u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.User != nil:
		return fmt.Errorf("%q is not an http or https URL with a host and without a user", text)
	case !strings.Contains(text, KeyInURL):
		return fmt.Errorf("%q lacks %s", text, KeyInURL)
	}
	return nil
}

func (a API) validate() error {
	if err := absolute("api.socket", a.Socket); err != nil {
		return err
	}
	if (a.CertFile == "") != (a.KeyFile == "") {
		return errors.New("api: cert_file and key_file go together")
	}
	if a.Listen == "" {
		return nil
	}
	loopback, err := listenAddress("api.listen", a.Listen)
	if err != nil {
		return err
	}
	if !loopback && (a.CertFile == "" || a.TokenFile == "" && a.ReadTokenFile == "") {
		return holdfast.WithHint(fmt.Errorf("api.listen: %s is not a loopback address", a.Listen),
			"beyond loopback the API needs TLS and a token: set api.cert_file, api.key_file, and api.token_file or api.read_token_file")
	}
	return nil
}

func (c Config) validateLimits() error {
	s := c.Sessions
	if s.IdleStop < 0 || s.Boots < 1 || s.Max < 0 || s.Snapshots < 0 {
		return fmt.Errorf("sessions: idle_stop %v, max %d and snapshots %d must be 0 or more, boots %d 1 or more", s.IdleStop, s.Max, s.Snapshots, s.Boots)
	}
	if s.Networks < 0 || s.Networks > network.MaxReady {
		return fmt.Errorf("sessions: networks %d must be 0 to %d", s.Networks, network.MaxReady)
	}
	if c.Drain.Budget <= 0 {
		return fmt.Errorf("drain.budget: %v must be over 0", c.Drain.Budget)
	}
	return cmp.Or(within("preempt.", c.Preempt.Validate()), within("spinup.", c.Spinup.Validate()), within("images.", c.Images.Validate()),
		within("gc.", c.GC.Validate()), within("doctor.", c.Doctor.validate()))
}

func (d Doctor) validate() error {
	if len(d.Role) > maxRole || strings.Trim(d.Role, "abcdefghijklmnopqrstuvwxyz0123456789-") != "" {
		return fmt.Errorf("role: %q is not a word of a-z, 0-9 and -, of up to %d letters", d.Role, maxRole)
	}
	return cmp.Or(absolute("proc", d.Proc), absolute("sys", d.Sys), d.Watch.Validate(), d.Rotation.Validate(), d.validateCures())
}

func (d Doctor) validateCures() error {
	if len(d.Cures) > 0 && !d.Watch.Enabled {
		return errors.New("cures: scheduled cures need doctor.enabled, which tells their effect")
	}
	return schedule.Validate(d.Cures)
}

// maxRole is the longest role, in bytes.
const maxRole = 32

// listenAddress checks host:port and reports whether only this host can reach it. Names
// are not resolved, so only "localhost" counts.
func listenAddress(key, addr string) (loopback bool, err error) {
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return false, holdfast.WithHint(fmt.Errorf("%s: %q is not host:port", key, addr), "for example 127.0.0.1:7070")
	}
	if _, err := net.LookupPort("tcp", port); err != nil || port == "" {
		return false, fmt.Errorf("%s: %q has no port", key, addr)
	}
	ip, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && ip.Unmap().IsLoopback(), nil
}
