package gc

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"

	"github.com/docker/go-units"
	"github.com/goccy/go-yaml"
)

// Amount is a share in percent or a number of bytes. The zero value means that no
// amount was given.
type Amount struct {
	Percent float64 `yaml:"-"` // 0 to 100; 0 if Bytes applies
	Bytes   int64   `yaml:"-"`
}

// Percent is a share.
func Percent(p float64) Amount { return Amount{Percent: p} }

// Bytes is a size.
func Bytes(n int64) Amount { return Amount{Bytes: n} }

// ParseAmount reads "85%", "20GiB" or a number of bytes.
func ParseAmount(s string) (Amount, error) {
	if share, ok := strings.CutSuffix(strings.TrimSpace(s), "%"); ok {
		p, err := strconv.ParseFloat(strings.TrimSpace(share), 64)
		if err != nil || !(p >= 0 && p <= 100) {
			return Amount{}, fmt.Errorf("%q is not a percentage between 0%% and 100%%", s)
		}
		return Percent(p), nil
	}
	n, err := units.RAMInBytes(s)
	if err != nil || n < 0 {
		return Amount{}, fmt.Errorf("%q is neither a size such as 20GiB nor a percentage such as 85%%", s)
	}
	return Bytes(n), nil
}

// IsZero reports whether no amount was given.
func (a Amount) IsZero() bool { return a == Amount{} }

// Of returns the amount in bytes, with a share taken of whole.
func (a Amount) Of(whole int64) int64 {
	if a.Percent > 0 {
		return int64(float64(whole) * a.Percent / 100)
	}
	return a.Bytes
}

func (a Amount) String() string {
	if a.Percent > 0 {
		return strconv.FormatFloat(a.Percent, 'f', -1, 64) + "%"
	}
	return units.BytesSize(float64(a.Bytes))
}

// UnmarshalYAML implements yaml.BytesUnmarshaler.
func (a *Amount) UnmarshalYAML(text []byte) error {
	var s string
	if err := yaml.Unmarshal(text, &s); err != nil {
		return err
	}
	var err error
	*a, err = ParseAmount(s)
	return err
}

// MarshalJSON implements json.Marshaler.
func (a Amount) MarshalJSON() ([]byte, error) { return json.Marshal(a.String()) }

// UnmarshalJSON implements json.Unmarshaler.
func (a *Amount) UnmarshalJSON(b []byte) error {
	var s string
	err := json.Unmarshal(b, &s)
	if err == nil {
		*a, err = ParseAmount(s)
	}
	return err
}
