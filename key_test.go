package holdfast

import (
	"errors"
	"regexp"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// keySyntax is the key's syntax as the documentation writes it.
var keySyntax = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`)

func TestParseSessionKeyAgreesWithItsSyntax(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := rapid.OneOf(rapid.String(), rapid.StringMatching(`[a-z0-9-]{0,66}`)).Draw(t, "key")
		_, err := ParseSessionKey(s)
		if want := keySyntax.MatchString(s); (err == nil) != want {
			t.Fatalf("ParseSessionKey(%q): %v, the syntax says %v", s, err, want)
		}
	})
}

func TestKeyErrorSaysWhatIsWrong(t *testing.T) {
	for s, want := range map[string]string{
		"":                      "empty",
		"-a":                    "hyphen",
		"Alice":                 `byte 1 is 'A'`,
		"a/b":                   `byte 2 is '/'`,
		strings.Repeat("a", 64): "64 bytes",
	} {
		_, err := ParseSessionKey(s)
		var bad *KeyError
		if !errors.As(err, &bad) || !strings.Contains(err.Error(), want) || HintOf(err) == "" {
			t.Errorf("ParseSessionKey(%q) = %v, want a KeyError with %q and a hint", s, err, want)
		}
	}
}

func TestStatesOnlyMoveForward(t *testing.T) {
	order := []State{Claimed, Starting, Ready, Leaving}
	for i, from := range order {
		for j, to := range order {
			if got, want := from.CanBecome(to), j >= i; got != want {
				t.Errorf("%s.CanBecome(%s) = %v", from, to, got)
			}
		}
		if from.CanBecome("asleep") {
			t.Errorf("%s can become an unknown state", from)
		}
	}
}

func TestTimingInvariants(t *testing.T) {
	if err := DefaultTiming().Validate(); err != nil {
		t.Fatalf("the default: %v", err)
	}
	for name, timing := range map[string]Timing{
		"3 s takeover":  {Renew: 300 * time.Millisecond, Fence: time.Second, KillBudget: 1200 * time.Millisecond, TTL: 3 * time.Second},
		"60 s takeover": {Renew: 5 * time.Second, Fence: 30 * time.Second, KillBudget: 20 * time.Second, TTL: 60 * time.Second},
	} {
		if err := timing.Validate(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	for name, change := range map[string]func(*Timing){
		"clocks apart": func(t *Timing) {
			*t = Timing{Renew: 4 * time.Second, Fence: 40 * time.Second, KillBudget: 18500 * time.Millisecond, TTL: 60 * time.Second}
		},
		"renew 0":          func(t *Timing) { t.Renew = 0 },
		"renew over fence": func(t *Timing) { t.Renew = t.Fence },
		"no kill budget":   func(t *Timing) { t.KillBudget = 0 },
		"fence past ttl":   func(t *Timing) { t.TTL = t.Fence + t.KillBudget },
		"part of a second": func(t *Timing) { t.TTL += time.Millisecond },
	} {
		timing := DefaultTiming()
		change(&timing)
		if timing.Validate() == nil {
			t.Errorf("%s: %+v is accepted", name, timing)
		}
	}
}
