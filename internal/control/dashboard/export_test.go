package dashboard

// Faults and Quantile are exported for tests.
const Faults = faults

func Quantile(q float64, bounds, counts []float64, total float64) (float64, bool) {
	return histogram{bounds, counts, total}.quantile(q)
}
