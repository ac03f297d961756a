package preempt

import (
	"cmp"
	"fmt"
	"strings"
)

// Config lists the sources of notices. All are off by default.
type Config struct {
	GCE    Endpoint `yaml:"gce"`
	AWS    Endpoint `yaml:"aws"`
	Azure  Azure    `yaml:"azure"`
	Logind Endpoint `yaml:"logind"`
}

// Endpoint is one source.
type Endpoint struct {
	Enabled bool `yaml:"enabled"`
	// Endpoint replaces the default address of the source: http://host for a
	// metadata service, or a D-Bus address for logind, as in
	// unix:path=/run/dbus/system_bus_socket.
	Endpoint string `yaml:"endpoint"`
}

// Azure is the source of Azure's scheduled events.
type Azure struct {
	Endpoint `yaml:",inline"`
	// Acknowledge lets an event begin as soon as this host is drained, for every
	// machine that the event affects.
	Acknowledge bool `yaml:"acknowledge"`
}

// Enable turns sources on by their names: gce, aws, azure, logind.
func (c *Config) Enable(names ...string) error {
	sources := map[string]*Endpoint{"gce": &c.GCE, "aws": &c.AWS, "azure": &c.Azure.Endpoint, "logind": &c.Logind}
	for _, name := range names {
		source := sources[name]
		if source == nil {
			return fmt.Errorf("there is no source %q; there are gce, aws, azure and logind", name)
		}
		source.Enabled = true
	}
	return nil
}

// Validate checks the endpoints; an error begins with the key, as in
// "gce.endpoint: ".
func (c Config) Validate() error {
	for _, x := range []struct {
		key      string
		endpoint string
		check    func(string) error
	}{
		{"gce", c.GCE.Endpoint, checkEndpoint},
		{"aws", c.AWS.Endpoint, checkEndpoint},
		{"azure", c.Azure.Endpoint.Endpoint, checkEndpoint},
		{"logind", c.Logind.Endpoint, checkBus},
	} {
		if x.endpoint == "" {
			continue
		}
		if err := x.check(x.endpoint); err != nil {
			return fmt.Errorf("%s.endpoint: %w", x.key, err)
		}
	}
	return nil
}

// checkBus accepts buses on this host only. Other buses pass no file descriptors,
// and an inhibitor is a file descriptor.
func checkBus(address string) error {
	if !strings.HasPrefix(address, "unix:") {
		return fmt.Errorf("%q is not a D-Bus address such as unix:path=/run/dbus/system_bus_socket", address)
	}
	return nil
}

// Sources returns the enabled sources. It starts nothing.
func (c Config) Sources() []Source {
	var on []Source
	if c.GCE.Enabled {
		on = append(on, newGCE(cmp.Or(c.GCE.Endpoint, metadataIP)))
	}
	if c.AWS.Enabled {
		on = append(on, newAWS(cmp.Or(c.AWS.Endpoint, metadataIP)))
	}
	if c.Azure.Enabled {
		on = append(on, newAzure(cmp.Or(c.Azure.Endpoint.Endpoint, metadataIP), c.Azure.Acknowledge))
	}
	if c.Logind.Enabled {
		on = append(on, newLogind(c.Logind.Endpoint))
	}
	return on
}
