package config

import "strings"

// Overrides are settings of a flag or the environment that override the file. Empty
// means not given.
type Overrides struct {
	Node          string
	DataDir       string
	RunDir        string
	Engine        string
	EngineHost    string
	EtcdEndpoints string // comma-separated
	EtcdCA        string
	EtcdCert      string
	EtcdKey       string
	FleetListen   string
	GatewayListen string
	APIListen     string // "none" for no TCP listener
	Socket        string
	LogLevel      string
}

// override is one of them: the key of the file that it overrides, and its flag.
type override struct {
	key, flag, value string
	set              func(value string)
}

// given returns the given overrides, as changes of c.
func (o Overrides) given(c *Config) []override {
	text := func(to *string) func(string) { return func(v string) { *to = v } }
	var given []override
	for _, x := range []override{
		{"node", "node", o.Node, text(&c.Node)},
		{"data_dir", "data-dir", o.DataDir, text(&c.DataDir)},
		{"run_dir", "run-dir", o.RunDir, text(&c.RunDir)},
		{"engine.name", "engine", o.Engine, text(&c.Engine.Name)},
		{"engine.host", "docker-host", o.EngineHost, text(&c.Engine.Host)},
		{"store.endpoints", "etcd-endpoints", o.EtcdEndpoints, func(v string) { c.Store.Endpoints = strings.Split(v, ",") }},
		{"store.ca_file", "etcd-ca-file", o.EtcdCA, text(&c.Store.CAFile)},
		{"store.cert_file", "etcd-cert-file", o.EtcdCert, text(&c.Store.CertFile)},
		{"store.key_file", "etcd-key-file", o.EtcdKey, text(&c.Store.KeyFile)},
		{"fleet.listen", "fleet", o.FleetListen, text(&c.Fleet.Listen)},
		{"gateway.listen", "gateway", o.GatewayListen, text(&c.Gateway.Listen)},
		{"api.listen", "api", o.APIListen, text(&c.API.Listen)},
		{"api.socket", "socket", o.Socket, text(&c.API.Socket)},
		{"log.level", "log-level", o.LogLevel, text(&c.Log.Level)},
	} {
		if x.value != "" {
			given = append(given, x)
		}
	}
	return given
}

func (o Overrides) apply(c *Config) {
	for _, x := range o.given(c) {
		x.set(x.value)
	}
	if c.API.Listen == "none" {
		c.API.Listen = ""
	}
}
