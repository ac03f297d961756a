// Command drillworker is the part of a drill that hurts, as a small static program
// for tests in containers. In the product it is a role of the command holdfast.
package main

import (
	"context"
	"fmt"
	"os"

	"holdfast/internal/hosts/doctor/drill"
)

func main() {
	if err := drill.Work(context.Background(), os.Args[2:]); err != nil { // behind the role
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}
