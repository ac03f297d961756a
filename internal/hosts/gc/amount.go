package gc

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/docker/go-units"
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

// MarshalText implements encoding.TextMarshaler, for JSON.
func (a Amount) MarshalText() ([]byte, error) { return []byte(a.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler, for YAML and JSON.
func (a *Amount) UnmarshalText(text []byte) (err error) {
	*a, err = ParseAmount(string(text))
	return err
}
