package agent

import "holdfast/internal/sessions/runtimes"

// newRuntimes is what tries the runtimes that templates name.
func (a *Agent) newRuntimes() *runtimes.Checker {
	var names []string
	for _, t := range a.cfg.Templates {
		names = append(names, t.Runtime)
	}
	return runtimes.New(names, a.engine, a.metrics, a.log)
}
