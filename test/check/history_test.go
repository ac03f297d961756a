package check

import (
	"errors"
	"strings"
	"testing"
	"time"

	"holdfast"
)

// at gives calls without a time their times: a second apart, each answered after half a second.
func at(ops ...Op) []Op {
	for i := range ops {
		o := &ops[i]
		o.Key = "k"
		if o.Call == 0 {
			o.Call = time.Duration(i+1) * time.Second
		}
		if o.Return == 0 && o.Result != Unknown {
			o.Return = o.Call + time.Second/2
		}
	}
	return ops
}

func version(epoch, revision int) Version {
	return Version{holdfast.Epoch(epoch), holdfast.Revision(revision)}
}

func claimed(client string, epoch int) Op {
	return Op{Client: client, Kind: Claim, Result: OK, Got: version(epoch, epoch)}
}

func taken(client string, epoch, revision int) Op {
	return Op{Client: client, Kind: Claim, Result: Taken, Got: version(epoch, revision)}
}

func advanced(client string, epoch, from, to int) Op {
	return Op{Client: client, Kind: Advance, Given: version(epoch, from), Result: OK, Got: version(epoch, to)}
}

func released(client string, epoch, revision int) Op {
	return Op{Client: client, Kind: Release, Given: version(epoch, revision), Result: OK}
}

func expired(epoch int, from, seen time.Duration) Op {
	return Op{Client: "etcd", Kind: Expire, Given: version(epoch, 0), Result: OK, Call: from, Return: seen}
}

func unknown(o Op) Op {
	o.Result, o.Got = Unknown, Version{}
	return o
}

func read(epoch, revision int) Op {
	return Op{Client: "r", Kind: Read, Result: OK, Got: version(epoch, revision)}
}

func (o Op) as(r Result, got Version) Op {
	o.Result, o.Got = r, got
	return o
}

func TestHistoriesThatCanBe(t *testing.T) {
	for name, ops := range map[string][]Op{
		"one after the other": at(claimed("a", 5), taken("b", 5, 5), advanced("a", 5, 5, 6), released("a", 5, 6), claimed("b", 7)),
		"at the same time": at(
			Op{Client: "a", Kind: Claim, Result: Taken, Got: version(5, 5), Call: 1, Return: 9}, // before the answer of the successful call
			Op{Client: "b", Kind: Claim, Result: OK, Got: version(5, 5), Call: 1, Return: 10}),
		"expired":                             at(claimed("a", 5), claimed("b", 7), expired(5, 1400*time.Millisecond, 2400*time.Millisecond)),
		"a late answer to what expired":       at(claimed("a", 5), expired(5, 1400*time.Millisecond, 2400*time.Millisecond), claimed("b", 7), advanced("a", 5, 5, 6).as(Stale, version(7, 7))),
		"release of what is another's by now": at(claimed("a", 5), released("a", 5, 5), claimed("b", 7), released("a", 5, 5).as(Kept, Version{})),
		"a claim whose answer got lost":       at(unknown(claimed("a", 0)), taken("a", 5, 5), advanced("a", 5, 5, 6), released("a", 5, 6), claimed("a", 9)),
		"a claim that took effect late":       at(unknown(claimed("a", 0)), claimed("b", 5), released("b", 5, 5), taken("b", 8, 8)),
		"a claim that never did":              at(unknown(claimed("a", 0)), claimed("b", 5), read(5, 5)),
		"an advance whose answer got lost":    at(claimed("a", 5), unknown(advanced("a", 5, 5, 0)), released("a", 5, 5).as(Kept, Version{}), read(5, 8), released("a", 5, 8), read(0, 0).as(None, Version{})),
		"a release that took effect late":     at(claimed("a", 5), unknown(released("a", 5, 5)), taken("b", 5, 5), claimed("b", 9)),
	} {
		t.Run(name, func(t *testing.T) {
			seen, err := History(ops, time.Minute)
			if err != nil || seen.Keys != 1 || seen.Ops != len(ops) {
				t.Errorf("%+v: %v", seen, err)
			}
		})
	}
}

func TestHistoriesThatCannotBe(t *testing.T) {
	for name, c := range map[string]struct {
		ops  []Op
		want string // of the evidence
	}{
		"two claims at once":                {at(claimed("a", 5), claimed("b", 6)), "b claim: ok, epoch 6"},
		"release of another's epoch":        {at(claimed("a", 5), released("a", 5, 5), claimed("b", 7), released("a", 5, 5)), "a release of epoch 5"},
		"an advance of another's epoch":     {at(claimed("a", 5), released("a", 5, 5), claimed("b", 7), advanced("a", 5, 5, 8)), "a advance of epoch 5"},
		"an epoch that shrinks":             {at(claimed("a", 5), released("a", 5, 5), claimed("b", 4)), "b claim: ok, epoch 4"},
		"a release that did not":            {at(claimed("a", 5), released("a", 5, 5).as(Kept, Version{})), "a release"},
		"a read of the past":                {at(claimed("a", 5), advanced("a", 5, 5, 6), read(5, 5)), "r read"},
		"a record that is gone by itself":   {at(claimed("a", 5), read(0, 0).as(None, Version{})), "r read"},
		"a claim before what made room":     {at(claimed("a", 5), claimed("b", 7), expired(5, 2600*time.Millisecond, 3*time.Second)), "b claim: ok, epoch 7"},
		"an expiry of what was given up":    {at(claimed("a", 5), released("a", 5, 5), claimed("b", 7), expired(5, 4*time.Second, 5*time.Second)), "etcd expire"},
		"two lost claims that both were":    {at(unknown(claimed("a", 0)), taken("a", 5, 5), claimed("b", 6)), "b claim: ok, epoch 6"},
		"an advance that skips a lost one":  {at(claimed("a", 5), advanced("a", 5, 5, 6), advanced("a", 5, 5, 7)), "a advance"},
		"a stale answer to what is current": {at(claimed("a", 5), advanced("a", 5, 5, 6).as(Stale, version(5, 5))), "a advance"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := History(c.ops, time.Minute)
			var bad *HistoryError
			if !errors.As(err, &bad) || bad.Key != "k" {
				t.Fatalf("not caught: %v", err)
			}
			if first, _, _ := strings.Cut(err.Error(), "\nafter"); !strings.Contains(first, c.want) {
				t.Errorf("%q is not what cannot be explained: %v", c.want, err)
			}
		})
	}
}

func TestKeysHaveHistoriesOfTheirOwn(t *testing.T) {
	ops := at(claimed("a", 5), claimed("b", 6))
	ops[1].Key = "other"
	if seen, err := History(ops, time.Minute); err != nil || seen.Keys != 2 || seen.Claims != 2 {
		t.Errorf("%+v: %v", seen, err)
	}
}
