package files

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"holdfast"
)

// request is one call. Paths are bytes, because they may be no UTF-8.
type request struct {
	Op        string
	Path, To  []byte
	Name      []byte `json:",omitempty"` // of the first entry of an archive
	Follow    bool   `json:",omitempty"`
	Parents   bool   `json:",omitempty"`
	Replace   bool   `json:",omitempty"`
	Recursive bool   `json:",omitempty"`
	Limit     int    `json:",omitempty"`
	Write     holdfast.WriteFile
	Unpack    holdfast.UnpackFiles
}

// reply is the result of a call.
type reply struct {
	File  *holdfast.File     `json:",omitempty"`
	List  []holdfast.File    `json:",omitempty"`
	More  bool               `json:",omitempty"`
	Total *holdfast.Unpacked `json:",omitempty"`
}

// part is what is read of a file, in bytes.
type part struct{ From, Count int64 }

// streams are what a call has beside its request and its reply. The operation uses those that
// it needs.
type streams struct {
	in  io.Reader // what is written
	out io.Writer // what is read
	// opened is called before the first write to out.
	opened func(context.Context, holdfast.File) (part, error)
	abort  func(error) // ends writes to out; may be nil
	events chan<- holdfast.FileEvent
}

// operation does one call on a tree.
type operation struct {
	verb string // for errors
	do   func(ctx context.Context, t *tree, p string, q request, s streams) (reply, error)
}

// operations are those of Files, by name. They run in the agent, or in the container.
func operations() map[string]operation {
	return map[string]operation{
		"stat":   {"stat", stat},
		"list":   {"list", list},
		"read":   {"read", read},
		"pack":   {"read", pack},
		"write":  {"write", write},
		"unpack": {"write", unpack},
		"mkdir":  {"make directory", makeDir},
		"move":   {"move", move},
		"remove": {"remove", remove},
		"watch":  {"watch", watchTree},
	}
}

// call does one call. A file system may hang: then call returns before the operation, whose
// context ends with ctx and with the session.
func (f *Files) call(ctx context.Context, key holdfast.SessionKey, p string, q request, s streams) (out reply, err error) {
	defer func() { f.note(err) }()
	if p, err = clean(p); err != nil {
		return out, err
	}
	release := func() {}
	if q.Op != "watch" { // a watch has a bound of its own
		if release, err = f.take(&f.calls, key, "calls about files"); err != nil {
			return out, err
		}
	}
	place, err := f.locate(key)
	if err != nil {
		release()
		return out, err
	}
	op := operations()[q.Op]
	q.Path = []byte(p)
	do := func(ctx context.Context) (reply, error) { return f.inside(ctx, key, place, p, q, s) }
	if !sandboxed(place.PID) {
		t, err := f.open(key, place)
		if err != nil {
			release()
			return out, err
		}
		do = func(ctx context.Context) (out reply, err error) {
			defer t.root.Close()
			err = <-t.root.Go(func() error {
				out, err = op.do(ctx, t, p, q, s)
				return explain(op.verb, p, err)
			})
			return out, err
		}
	}
	return bounding(ctx, place.Left, op.verb, p, func(ctx context.Context) (reply, error) {
		defer release()
		if s.in != nil {
			body, closed := pipe(ctx, s.in)
			defer closed()
			s.in = body
		}
		if s.abort != nil {
			defer context.AfterFunc(ctx, func() { s.abort(context.Cause(ctx)) })()
		}
		out, err := do(ctx)
		if q.Op == "watch" && errors.Is(err, context.Canceled) && !errors.Is(err, errLeft) {
			err = nil // the reader has left
		}
		return out, err
	})
}

// bounding calls do, and returns soon after ctx or the session ends.
func bounding(ctx context.Context, left <-chan struct{}, verb, p string, do func(context.Context) (reply, error)) (reply, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	type result struct {
		reply
		err error
	}
	over := make(chan result, 1)
	go func() {
		out, err := do(ctx)
		over <- result{out, err}
	}()
	select {
	case r := <-over:
		return r.reply, r.err
	case <-left:
		cancel(errLeft)
	case <-ctx.Done():
	}
	cause := context.Cause(ctx)
	select {
	case r := <-over:
		if r.err == nil {
			return r.reply, nil
		}
	case <-time.After(giveUp):
		cause = fmt.Errorf("the file system does not answer: %w", cause)
	}
	return reply{}, explain(verb, p, cause)
}
