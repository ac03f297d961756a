// The program names prints where some of its functions are: the address, the name,
// and then what it has mapped.
package main

import (
	"fmt"
	"os"
	"reflect"
	"runtime"
	"strings"
)

type worker struct{}

//go:noinline
func (worker) work() { fmt.Print() }

func main() {
	for _, f := range []any{worker.work, strings.ToUpper, runtime.GC, fmt.Errorf, os.ReadFile} {
		pc := reflect.ValueOf(f).Pointer()
		fmt.Printf("%x %s\n", pc, runtime.FuncForPC(pc).Name())
	}
	fmt.Println()
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		panic(err)
	}
	os.Stdout.Write(maps)
}
