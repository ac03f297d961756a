package config

import (
	"cmp"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"holdfast"
)

// KeptSockets is how clients' WebSockets are kept if a template says "websocket: keep".
type KeptSockets struct {
	Time   time.Duration `yaml:"time"`    // default 30s
	Buffer Bytes         `yaml:"buffer"`  // default 256KiB
	Tell   string        `yaml:"tell"`    // default: nothing
	TellAs string        `yaml:"tell_as"` // text (default) or ping
}

// maxSocketBuffer is the largest buffer for one client.
const maxSocketBuffer = 64 << 20

func (t *Template) defaultSockets() {
	t.WebSocket = cmp.Or(t.WebSocket, "close")
	k := &t.KeptSockets
	k.Time = cmp.Or(k.Time, 30*time.Second)
	k.Buffer = cmp.Or(k.Buffer, 256<<10)
	k.TellAs = cmp.Or(k.TellAs, "text")
}

func (t Template) validateSockets() error {
	k, most := t.KeptSockets, holdfast.MaxTell
	if err := cmp.Or(oneOf("websocket", t.WebSocket, "close", "keep"), oneOf("kept_sockets.tell_as", k.TellAs, "text", "ping")); err != nil {
		return err
	}
	if k.TellAs == "ping" {
		most = holdfast.MaxPing
	}
	switch {
	case k.Time < 0:
		return fmt.Errorf("kept_sockets.time: %v is below 0", k.Time)
	case k.Buffer < 0 || k.Buffer > maxSocketBuffer:
		return errors.New("kept_sockets.buffer must be from 1 byte to 64MiB")
	case len(k.Tell) > most:
		return fmt.Errorf("kept_sockets.tell: a %s has room for %d bytes, this has %d", k.TellAs, most, len(k.Tell))
	case !utf8.ValidString(k.Tell):
		return errors.New("kept_sockets.tell is not UTF-8")
	}
	return nil
}

// protocolName matches the value of an Upgrade header that names one protocol.
var protocolName = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile("^[A-Za-z0-9!#$%&'*+.^_`|~-]+(/[A-Za-z0-9!#$%&'*+.^_`|~-]+)?$")
})

// validateUpgrades refuses names that are no protocol (RFC 9110, 7.8), and HTTP/2
// without TLS, through which requests would bypass the gateway.
func (t Template) validateUpgrades() error {
	for i, name := range t.Upgrades {
		switch {
		case strings.EqualFold(name, "h2c"):
			return fmt.Errorf("upgrades[%d]: requests over h2c would bypass the gateway's checks", i)
		case !protocolName().MatchString(name):
			return fmt.Errorf("upgrades[%d]: %q is not a protocol such as chat or chat/2", i, name)
		}
	}
	return nil
}

// keepSockets returns the template's settings in the gateway's type.
func (t Template) keepSockets() *holdfast.KeepSockets {
	if t.WebSocket != "keep" {
		return nil
	}
	k := t.KeptSockets
	return &holdfast.KeepSockets{
		Time: k.Time, Buffer: int(k.Buffer), Tell: k.Tell, Ping: k.TellAs == "ping",
		Asleep: t.Handover == "memory" && t.Sleep.After > 0 && t.Sleep.IdleBy == "data",
	}
}
