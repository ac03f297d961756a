package dashboard

// Faults and Quantile are exported for tests.
const Faults = faults

// EventOf returns the event of a page's part with the given content.
func EventOf(html string) string { return event([]fragment{{"part", html}}) }

func Quantile(q float64, bounds, counts []float64, total float64) (float64, bool) {
	return histogram{bounds, counts, total}.quantile(q)
}
