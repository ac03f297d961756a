package holdfast

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
)

// MaxPorts is the most ports that Ports lists.
const MaxPorts = 64

// Ports are TCP ports of a session's container: those that are listed, or all from 1 to
// 65535. The zero value is no port. In JSON and YAML it is a list of numbers, or "all".
type Ports struct {
	All  bool  `yaml:"-"`
	List []int `yaml:"-"` // nil if All
}

// Allows reports whether the port is one of p.
func (p Ports) Allows(port int) bool {
	return p.All && port >= 1 && port <= 65535 || slices.Contains(p.List, port)
}

// None reports whether p has no port.
func (p Ports) None() bool { return !p.All && len(p.List) == 0 }

// IsZero serves the JSON option omitzero.
func (p Ports) IsZero() bool { return p.None() }

// Check returns an error unless p lists at most MaxPorts ports, each from least to 65535
// and each once.
func (p Ports) Check(least int) error {
	if len(p.List) > MaxPorts {
		return fmt.Errorf("%d ports are listed, at most %d are allowed; all allows every port", len(p.List), MaxPorts)
	}
	for i, port := range p.List {
		if port < least || port > 65535 {
			return fmt.Errorf("%d is not between %d and 65535", port, least)
		}
		if slices.Contains(p.List[:i], port) {
			return fmt.Errorf("%d is listed twice", port)
		}
	}
	return nil
}

var errPorts = errors.New("ports must be a list of numbers such as [3000, 5173], or all")

// decode reads p with the decoder of a format.
func (p *Ports) decode(decode func(any) error) error {
	var word string
	if decode(&word) == nil {
		if word != "all" {
			return errPorts
		}
		*p = Ports{All: true}
		return nil
	}
	var list []int
	if decode(&list) != nil {
		return errPorts
	}
	*p = Ports{List: list}
	return nil
}

// UnmarshalJSON implements json.Unmarshaler.
func (p *Ports) UnmarshalJSON(text []byte) error {
	return p.decode(func(v any) error { return json.Unmarshal(text, v) })
}

// UnmarshalYAML implements yaml.InterfaceUnmarshaler.
func (p *Ports) UnmarshalYAML(decode func(any) error) error { return p.decode(decode) }

// MarshalJSON implements json.Marshaler.
func (p Ports) MarshalJSON() ([]byte, error) {
	v, _ := p.MarshalYAML()
	return json.Marshal(v)
}

// MarshalYAML implements yaml.InterfaceMarshaler.
func (p Ports) MarshalYAML() (any, error) {
	switch {
	case p.All:
		return "all", nil
	case p.List == nil:
		return []int{}, nil
	}
	return p.List, nil
}
