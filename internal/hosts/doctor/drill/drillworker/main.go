// Command drillworker runs the processes of a drill, as a small static program for tests
// in containers. In the product this is a role of the command holdfast.
package main

import (
	"context"
	"fmt"
	"os"

	"holdfast/internal/hosts/doctor/drill"
)

func main() {
	if err := drill.Work(context.Background(), os.Args[2:]); err != nil { // after the role
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}
