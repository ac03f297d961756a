package apitest

import (
	"context"
	"slices"
	"time"

	"holdfast"
)

// history implements api.History: the sessions "oom" and "broken" have ended, and there are
// a few events.
type history struct{ b *Backend }

// Ended are the endings of the backend, the newest first.
func Ended() []holdfast.Ending {
	code, failed := 137, 3
	return []holdfast.Ending{
		{Key: "oom", Node: "n1", Epoch: 9, Template: "shell", ContainerID: "0000000900000009", ReadyAt: Began, At: Began.Add(2 * time.Minute),
			Reason: holdfast.EndOOM, By: holdfast.ByKernel, ExitCode: &code, Signal: "SIGKILL", OOMKills: 1,
			Memory: &holdfast.MemoryHistory{Limit: 64 << 20, Peak: 64 << 20, Samples: []holdfast.MemorySample{
				{At: Began.Add(118 * time.Second), Bytes: 12 << 20}, {At: Began.Add(119 * time.Second), Bytes: 60 << 20}}}},
		{Key: "broken", Node: "n1", Epoch: 8, Template: "shell", At: Began.Add(time.Minute), Reason: holdfast.EndBootFailed, By: holdfast.ByContainer,
			ExitCode: &failed, Phase: "ready", Error: "the container ended with exit code 3 before it was ready", Log: "listening on :8080\npanic: no \x1b[31mdatabase\n"},
	}
}

// Endings implements api.History.
func (h history) Endings(_ context.Context, key holdfast.SessionKey, limit int) (holdfast.EndingReport, error) {
	return holdfast.EndingReport{Endings: h.OwnEndings(key, limit)}, h.b.failure()
}

// OwnEndings implements api.History.
func (h history) OwnEndings(key holdfast.SessionKey, limit int) []holdfast.Ending {
	all := slices.DeleteFunc(Ended(), func(e holdfast.Ending) bool { return key != "" && e.Key != key })
	if limit > 0 {
		all = all[:min(limit, len(all))]
	}
	return all
}

// happened are the events of the backend.
func happened() []holdfast.SessionEvent {
	end := Ended()[0]
	end.Memory = nil
	all := []holdfast.SessionEvent{
		{Type: holdfast.EventRequested}, {Type: holdfast.EventBoot, Epoch: 9},
		{Type: holdfast.EventReady, Epoch: 9, Took: holdfast.Millis(400 * time.Millisecond)}, {Type: holdfast.EventEnded, Epoch: 9, Ending: &end},
	}
	for i := range all {
		e := &all[i]
		e.ID, e.At, e.Key, e.Node, e.Template = int64(i+1), Began.Add(time.Duration(i)*time.Second), "oom", "n1", "shell"
	}
	return all
}

// Events implements api.History. No event happens later: the stream ends.
func (h history) Events(after int64) (next func(context.Context, bool) ([]holdfast.SessionEvent, error), closed func()) {
	all := happened() // of one session
	rest := all[min(max(after, 0), int64(len(all))):]
	if after < 0 {
		rest = nil
	}
	return func(ctx context.Context, _ bool) ([]holdfast.SessionEvent, error) {
		some := rest
		rest = nil
		return some, ctx.Err()
	}, func() {}
}
