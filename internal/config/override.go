package config

import "strings"

// Overrides are the settings that a flag or the environment may give in place
// of the file. Empty means not given.
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

func (o Overrides) apply(c *Config) {
	for _, x := range []struct {
		to    *string
		value string
	}{
		{&c.Node, o.Node},
		{&c.DataDir, o.DataDir},
		{&c.RunDir, o.RunDir},
		{&c.Engine.Name, o.Engine},
		{&c.Engine.Host, o.EngineHost},
		{&c.Store.CAFile, o.EtcdCA},
		{&c.Store.CertFile, o.EtcdCert},
		{&c.Store.KeyFile, o.EtcdKey},
		{&c.Fleet.Listen, o.FleetListen},
		{&c.Gateway.Listen, o.GatewayListen},
		{&c.API.Listen, o.APIListen},
		{&c.API.Socket, o.Socket},
		{&c.Log.Level, o.LogLevel},
	} {
		if x.value != "" {
			*x.to = x.value
		}
	}
	if o.EtcdEndpoints != "" {
		c.Store.Endpoints = strings.Split(o.EtcdEndpoints, ",")
	}
	if c.API.Listen == "none" {
		c.API.Listen = ""
	}
}
