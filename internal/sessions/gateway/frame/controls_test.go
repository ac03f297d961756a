package frame

import (
	"bytes"
	"testing"
)

func masked(first byte, payload string) []byte {
	b := append([]byte{first, 0x80 | byte(len(payload))}, 1, 2, 3, 4)
	for i := range payload {
		b = append(b, payload[i]^byte(i%4+1))
	}
	return b
}

// Only whole Pings and Pongs are no data. Each Ping is answered with its payload.
func TestControls(t *testing.T) {
	ping, pong := masked(Fin|Ping, "are you there"), masked(Fin|Pong, "")
	for name, c := range map[string]struct {
		in   []byte
		want []byte
		ok   bool
	}{
		"nothing":          {nil, nil, true},
		"a Ping":           {ping, Server(Pong, []byte("are you there")), true},
		"two, and a Pong":  {bytes.Join([][]byte{ping, pong, masked(Fin|Ping, "x")}, nil), append(Server(Pong, []byte("are you there")), Server(Pong, []byte("x"))...), true},
		"of a server":      {Server(Ping, nil), Server(Pong, nil), true},
		"half a Ping":      {ping[:10], nil, false},
		"half a header":    {ping[:1], nil, false},
		"data":             {masked(Fin|Text, "x"), nil, false},
		"a Ping and data":  {append(bytes.Clone(ping), masked(Fin|Text, "x")...), nil, false},
		"Close":            {masked(Fin|Close, ""), nil, false},
		"a fragmented one": {masked(Ping, "x"), nil, false},
		"a reserved bit":   {masked(Fin|0x40|Ping, "x"), nil, false},
		"the mark":         {Server(End, nil), nil, false},
		"too long":         {[]byte{Fin | Ping, 126, 0, 126}, nil, false},
	} {
		pongs, ok := Controls(c.in)
		if ok != c.ok || ok && !bytes.Equal(pongs, c.want) {
			t.Errorf("%s: %x, %v", name, pongs, ok)
		}
	}
}
