package bench

import "context"

type directoryReport struct{}

func (s *simulation) lose(ctx context.Context) error             { return nil }
func (s *simulation) measureDirectory(ctx context.Context) error { return nil }
func (s *simulation) result() Result {
	r := Result{Name: "scale", Machine: ThisMachine(""), Rows: s.meter.rows(), Failed: int(s.failed.Load()), Notes: s.notes}
	r.Rows = append(r.Rows, between(partSteady, s.usage[0], s.usage[1])...)
	return r
}
