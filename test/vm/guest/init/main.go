// Command init is pid 1 of a test machine.
package main

import "holdfast/test/vm/guest"

func main() { guest.Main() }
