package apitest

import (
	"context"
	"time"

	"holdfast"
	"holdfast/internal/control/api"
)

// Replace implements api.Replacer, one after the other: each session starts
// again here, in 0.1 s more than the one before it; the first takes 1.3 s.
// "stuck" fails and ends the replacement. With a Gate each session waits for it,
// or until ctx is done.
func (b *Backend) Replace(ctx context.Context, q api.Replace, progress func(bool, holdfast.Replacement)) (holdfast.ReplaceReport, error) {
	if err := b.failure(); err != nil {
		return holdfast.ReplaceReport{}, err
	}
	rep := holdfast.ReplaceReport{Started: Began}
	for i, key := range q.Keys {
		if rep.Failed() > 0 || ctx.Err() != nil {
			rep.Unbegun = q.Keys[i:]
			break
		}
		s, err := b.Session(ctx, key)
		if err != nil {
			rep.Gone = append(rep.Gone, key)
			continue
		}
		row := holdfast.Replacement{Key: key, Template: s.Template, From: s.Node, Started: Began.Add(time.Duration(i) * time.Minute)}
		progress(false, row)
		if b.Gate != nil {
			select {
			case <-b.Gate:
			case <-ctx.Done():
			}
		}
		b.replaceOne(&row, i)
		rep.Took += row.Total
		rep.Rows = append(rep.Rows, row)
		progress(true, row)
	}
	return rep, nil
}

func (b *Backend) replaceOne(row *holdfast.Replacement, i int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	defer func() { b.history = append([]holdfast.Replacement{*row}, b.history...) }()
	ms := func(n int) holdfast.Millis { return holdfast.Millis(time.Duration(n) * time.Millisecond) }
	row.Total = ms(1300 + 100*i)
	at, err := b.find(row.Key)
	switch {
	case err != nil:
		row.Error = err.Error()
	case row.Key == "stuck":
		row.Error = "1 container left behind: still in its cgroup"
	default:
		b.epoch++
		b.sessions[at].Epoch = b.epoch
		row.To, row.Epoch = b.sessions[at].Node, b.epoch
		row.Boot = holdfast.Phases{Claim: ms(2), Init: ms(740 + 100*i), Create: ms(60), Start: ms(120), Ready: ms(340)}
		b.sessions[at].Boot = row.Boot
	}
}

// Replacements implements api.Replacer.
func (b *Backend) Replacements(limit int) ([]holdfast.Replacement, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	rows := b.history
	if limit > 0 {
		rows = rows[:min(limit, len(rows))]
	}
	return append([]holdfast.Replacement(nil), rows...), b.fault
}

// SetHistory makes Replacements return rows.
func (b *Backend) SetHistory(rows []holdfast.Replacement) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.history = rows
}
