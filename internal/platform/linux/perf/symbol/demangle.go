package symbol

import "github.com/ianlancetaylor/demangle"

// Demangle returns the name of a C++ or Rust function as in its source, without
// parameters and with at most 2^log2 bytes. It returns other names unchanged.
func Demangle(name string, log2 int) string {
	return demangle.Filter(name, demangle.NoParams, demangle.MaxLength(log2))
}
