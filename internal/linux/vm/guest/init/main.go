// Command init is pid 1 of a test machine.
package main

import "holdfast/internal/linux/vm/guest"

func main() { guest.Main() }
