package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"holdfast/internal/hosts/doctor/profile"
	"holdfast/internal/platform/linux/cgroup"
	"holdfast/internal/platform/linux/proc"
)

// roleDoctor makes the test binary a child of the doctor's bench: load, fold, or
// record with its flags.
const roleDoctor = "bench-doctor"

func doctorChild(args []string) int {
	err := fmt.Errorf("no role %q", args)
	switch args[0] {
	case "load":
		err = DoctorLoad(context.Background(), nil, os.Stdin, os.Stdout)
	case "fold":
		err = DoctorFold(context.Background(), nil, os.Stdin, os.Stdout)
	case "record":
		err = recordOnce(args[1:])
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// recordOnce is the part of `holdfast doctor record` that the bench uses.
func recordOnce(args []string) error {
	groups, err := cgroup.Find(proc.Host)
	if err != nil {
		return err
	}
	r := profile.Recorder{Proc: proc.Host, Groups: groups}
	f := flag.NewFlagSet("record", flag.ContinueOnError)
	file := f.String("o", "", "")
	f.Bool("json", false, "")
	f.DurationVar(&r.For, "for", 0, "")
	f.IntVar(&r.Hz, "hz", 0, "")
	if err := f.Parse(args); err != nil {
		return err
	}
	out, err := profile.Create(*file)
	if err != nil {
		return err
	}
	defer out.Abort()
	p, err := r.Run(context.Background())
	if err != nil {
		return err
	}
	if err := out.Commit(p); err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(profile.Summarize(p, 10))
}

// The whole experiment runs with small numbers.
func TestDoctor(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: perf events of the whole host need root, and the experiment its time")
	}
	role := func(name string) []string { return []string{"/proc/self/exe", roleDoctor, name} }
	r, err := Doctor(t.Context(), DoctorOptions{For: 2 * time.Second, Rounds: 1, Pairs: 1, Window: time.Second,
		Record: role("record"), Load: role("load"), Fold: role("fold"), Progress: t.Output()})
	if err != nil {
		t.Fatal(err)
	}
	if err := r.WriteText(t.Output()); err != nil {
		t.Error(err)
	}
	if r.Failed != 0 || len(r.Rows) != 7 || r.Score <= 0 {
		t.Errorf("%+v", r)
	}
	for _, row := range r.Rows[:5] {
		if row.N != 1 || row.P50 <= 0 {
			t.Errorf("row %+v", row)
		}
	}
	if err := (DoctorOptions{Hz: -1}).withDefaults().Check(); err == nil {
		t.Error("impossible options are accepted")
	}
}

func TestDoctorFold(t *testing.T) {
	const text = `logger 7 [000] 12.3: 10101010 cpu-clock:
\tffffffff8159a2b0 generic_fadvise+0x40 ([kernel.kallsyms])
\t          401000 main.log(int)+0x1f (/app)

my app 8 [001] 12.4: 10101010 cpu-clock:
\t          401000 [unknown] (/app)

`
	var out bytes.Buffer
	if err := DoctorFold(t.Context(), nil, strings.NewReader(strings.ReplaceAll(text, `\t`, "\t")), &out); err != nil || !strings.HasSuffix(out.String(), "\n2\n") ||
		!strings.Contains(out.String(), "logger;main.log(int);generic_fadvise 1\n") {
		t.Errorf("%q, %v", out.String(), err)
	}
}
