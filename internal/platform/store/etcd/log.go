package etcd

import (
	"context"
	"log/slog"

	"go.uber.org/zap/zapcore"
)

// bridge is a zapcore.Core that passes the log of etcd's client on to slog, from warnings
// up. It leaves out stacks.
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
