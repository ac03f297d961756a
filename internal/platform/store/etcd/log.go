package etcd

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

// zapLogger passes etcd's log on to log, from warnings up. Where etcd would end the
// process (zap's Fatal, Panic), it calls fail with the cause and ends the goroutine
// instead: the server fails, and the process lives.
func zapLogger(log *slog.Logger, fail context.CancelCauseFunc) *zap.Logger {
	hook := fatalHook{fail}
	return zap.New(bridge{log: log}, zap.WithFatalHook(hook), zap.WithPanicHook(hook))
}

// bridge is a zapcore.Core that writes to slog. It leaves out stacks.
type bridge struct {
	log    *slog.Logger
	fields []zapcore.Field
}

func (b bridge) Enabled(l zapcore.Level) bool {
	return l >= zapcore.WarnLevel && b.log.Enabled(context.Background(), slogLevel(l))
}

func (b bridge) With(fields []zapcore.Field) zapcore.Core {
	return bridge{b.log, append(b.fields[:len(b.fields):len(b.fields)], fields...)}
}

func (b bridge) Check(e zapcore.Entry, ce *zapcore.CheckedEntry) *zapcore.CheckedEntry {
	// No check of Enabled: a fatal entry has to reach the hook even if logs are off.
	if b.Enabled(e.Level) {
		return ce.AddCore(e, b)
	}
	return ce
}

func (b bridge) Write(e zapcore.Entry, fields []zapcore.Field) error {
	b.log.LogAttrs(context.Background(), slogLevel(e.Level), "etcd: "+e.Message, attrs(b.fields, fields)...)
	return nil
}

func (b bridge) Sync() error { return nil }

func slogLevel(l zapcore.Level) slog.Level {
	if l >= zapcore.ErrorLevel {
		return slog.LevelError
	}
	return slog.LevelWarn
}

func attrs(lists ...[]zapcore.Field) []slog.Attr {
	var out []slog.Attr
	for _, fields := range lists {
		for _, field := range fields {
			m := zapcore.NewMapObjectEncoder()
			field.AddTo(m)
			for key, value := range m.Fields {
				if key != "stack" && key != "stacktrace" && key != "errorVerbose" {
					out = append(out, slog.Any(key, value))
				}
			}
		}
	}
	return out
}

// fatalHook replaces os.Exit and panic of zap's Fatal and Panic.
type fatalHook struct{ fail context.CancelCauseFunc }

func (h fatalHook) OnWrite(ce *zapcore.CheckedEntry, fields []zapcore.Field) {
	h.fail(failureOf(ce.Message, fields))
	runtime.Goexit()
}

// failureOf keeps the error field in the chain, so that a full disk can be
// distinguished from a broken file.
func failureOf(message string, fields []zapcore.Field) error {
	for _, field := range fields {
		if err, ok := field.Interface.(error); ok && field.Type == zapcore.ErrorType {
			return fmt.Errorf("etcd: %s: %w", message, err)
		}
	}
	return errors.New("etcd: " + message)
}
