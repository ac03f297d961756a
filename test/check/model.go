package check

import (
	"github.com/anishathalye/porcupine"

	"holdfast"
)

// record is the state of a key in the model. A revision or an epoch of 0 is unknown, because the
// answer of its write was lost.
type record struct {
	owned    bool
	epoch    holdfast.Epoch
	revision holdfast.Revision
	last     holdfast.Epoch // the highest epoch so far
}

// is returns the record with the given version, false if it has another version.
func (r record) is(v Version) (record, bool) {
	switch {
	case !r.owned,
		r.revision != 0 && r.revision != v.Revision,
		r.epoch != 0 && r.epoch != v.Epoch,
		r.epoch == 0 && v.Epoch <= r.last: // epochs only grow
		return r, false
	}
	r.epoch, r.revision, r.last = v.Epoch, v.Revision, v.Epoch
	return r, true
}

func (r record) freed() record { return record{last: r.last} }

// model is a store with one record for each key.
func model() porcupine.Model {
	m := porcupine.NondeterministicModel{
		Init: func() []any { return []any{record{}} },
		Step: func(state, input, _ any) []any {
			var out []any
			for _, r := range step(state.(record), input.(Op)) {
				out = append(out, r)
			}
			return out
		},
	}
	return m.ToModel()
}

// step returns the possible states of a record after the call, none if the answer is impossible.
func step(r record, o Op) []record {
	if o.Result == Unknown {
		return append([]record{r}, effects(r, o)...)
	}
	switch o.Kind {
	case Claim:
		return claim(r, o)
	case Advance:
		return advance(r, o)
	case Release:
		if o.Result == OK {
			return effects(r, o)
		}
		if r.owned && r.revision == o.Given.Revision {
			return nil // it should have been deleted
		}
		return []record{r}
	case Read:
		return present(r, o.Got)
	case Expire:
		return effects(r, o)
	}
	return nil
}

// effects returns the state after a call of unknown result, if the call takes effect.
func effects(r record, o Op) []record {
	switch o.Kind {
	case Claim:
		if !r.owned {
			return []record{{owned: true, last: r.last}}
		}
	case Advance:
		if r, ok := r.is(o.Given); ok {
			r.revision = 0
			return []record{r}
		}
	case Release:
		if r, ok := r.is(o.Given); ok {
			return []record{r.freed()}
		}
	case Expire:
		if r, ok := r.is(Version{o.Given.Epoch, r.revision}); ok {
			return []record{r.freed()}
		}
	}
	return nil
}

func claim(r record, o Op) []record {
	if o.Result == Taken {
		return present(r, o.Got)
	}
	if r.owned || o.Got.Epoch <= r.last {
		return nil
	}
	return []record{{owned: true, epoch: o.Got.Epoch, revision: o.Got.Revision, last: o.Got.Epoch}}
}

func advance(r record, o Op) []record {
	if o.Result == Stale {
		if o.Got.Revision == o.Given.Revision {
			return nil
		}
		return present(r, o.Got)
	}
	before, ok := r.is(Version{o.Got.Epoch, o.Given.Revision})
	if !ok || o.Got.Revision <= o.Given.Revision {
		return nil
	}
	before.revision = o.Got.Revision
	return []record{before}
}

// present returns the state in which the record has the given version, or does not exist if the
// version is 0.
func present(r record, v Version) []record {
	if v == (Version{}) {
		if r.owned {
			return nil
		}
		return []record{r}
	}
	if r, ok := r.is(v); ok {
		return []record{r}
	}
	return nil
}
