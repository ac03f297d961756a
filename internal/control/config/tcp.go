package config

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	"holdfast"
)

// TCP is an address on which clients of any protocol reach a group of replicas, or one
// session.
type TCP struct {
	Listen string              `yaml:"listen"` // host:port on loopback; "" for none
	Port   int                 `yaml:"port"`   // of the container; 0 (default) is the template's own
	Key    holdfast.SessionKey `yaml:"key"`    // of the session, if the template has no replicas
}

// TCPKey returns the session key to which the template's TCP address leads.
func (t Template) TCPKey() holdfast.SessionKey {
	return cmp.Or(t.TCP.Key, holdfast.SessionKey(t.Name))
}

// validateTCP checks a template's TCP address. Connections to it carry no token, so other
// hosts never reach it.
func (c Config) validateTCP(t Template) error {
	a := t.TCP
	if a == (TCP{}) {
		return nil
	}
	loopback, err := listenAddress("tcp.listen", a.Listen)
	switch {
	case err != nil:
		return err
	case !loopback:
		return holdfast.WithHint(fmt.Errorf("tcp.listen: %s is not a loopback address", a.Listen),
			"its connections carry no connect token, so it serves this host only; each node of a fleet has the address")
	case a.Port != 0 && a.Port != t.Port && !t.Ports.Allows(a.Port):
		return holdfast.WithHint(fmt.Errorf("tcp.port: the template does not allow port %d", a.Port), "use its port, or add the port to ports")
	case t.Replicas > 0 && a.Key != "":
		return errors.New("tcp.key: the address of a group leads to its replicas: remove the key")
	case t.Replicas > 0:
		return nil
	}
	if _, err := holdfast.ParseSessionKey(string(a.Key)); err != nil {
		return holdfast.WithHint(fmt.Errorf("tcp.key: %w", err), "name the session, or set replicas")
	}
	for _, g := range c.Groups() {
		if string(a.Key) == g.Name || holdfast.IsReplicaKey(g.Name, a.Key) {
			return fmt.Errorf("tcp.key: %s is a key of the group %s", a.Key, g.Name)
		}
	}
	first := slices.IndexFunc(c.Templates, func(t Template) bool { return t.Replicas == 0 })
	if d := c.Templates[first]; d.Name != t.Name {
		return holdfast.WithHint(fmt.Errorf("tcp.key: a connection would start session %s from template %s", a.Key, d.Name), "put the address into the default template, or set replicas")
	}
	return nil
}
