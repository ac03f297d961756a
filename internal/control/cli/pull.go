package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"holdfast/internal/control/api"
	"holdfast/internal/hosts/spinup"
	"holdfast/internal/hosts/spinup/puller"
)

func (a *app) pullCmd() *cobra.Command {
	var o pullOptions
	cmd := &cobra.Command{
		Use:   "pull [IMAGE...]",
		Short: "Pull images and show the time of each phase",
		Long: "Pull images through this host's engine, with the logins of docker login, and show what was downloaded and extracted, how fast, and which phases were slow.\n" +
			"Several images are pulled concurrently; a layer that they share is downloaded once.",
		Example: "  holdfast pull redis:7\n  holdfast pull --platform linux/arm64 --json registry.example.org/app:1\n  holdfast pull --prefetch redis:7",
		Args:    args(0, maxImages, "at most 256 images"),
		RunE: a.within(noLimit, func(ctx context.Context, cmd *cobra.Command, words []string) error {
			switch {
			case o.prefetch:
				return a.pullPrefetch(cmd, words, o)
			case o.remove:
				return usage(cmd, errors.New("--remove goes with --prefetch"))
			case len(words) == 0:
				return usage(cmd, fmt.Errorf("%s needs one image or more", cmd.CommandPath()))
			}
			return a.pull(ctx, words, o)
		}),
	}
	f := cmd.Flags()
	f.StringVar(&o.platform, "platform", "", "pull for another platform, such as linux/arm64")
	f.BoolVarP(&o.quiet, "quiet", "q", false, "print the images' full names and nothing else")
	f.BoolVar(&o.prefetch, "prefetch", false, "make the agent keep the images present on this host; without IMAGE: list the images that it keeps")
	cmd.ValidArgsFunction = func(cmd *cobra.Command, words []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
		if !o.prefetch || !o.remove {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return a.completePrefetch(cmd, words)
	}
	f.BoolVar(&o.remove, "remove", false, "with --prefetch: stop keeping the images; they are not deleted")
	return cmd
}

// maxImages is the most images of one command.
const maxImages = 256

type pullOptions struct {
	platform string
	quiet    bool
	prefetch bool
	remove   bool
}

func (a *app) pull(ctx context.Context, images []string, o pullOptions) error {
	local, err := a.openLocal(ctx)
	if err != nil {
		return err
	}
	defer local.close()
	p := puller.New(puller.Config{
		Engine: local.Engine, Logins: puller.DockerLogins{}, Manifests: puller.Registries{},
		Host: local.Host, Unpigz: spinup.HasUnpigz(),
	})
	var list []puller.Request
	for _, image := range images {
		list = append(list, puller.Request{Image: image, Platform: o.platform})
	}
	end := local.recorder.Begin(ctx, spinup.ForPull, images[0])
	shown := a.ui.pulls(images, o.quiet)
	results := p.All(ctx, list, puller.Watch{Progress: shown.progress, Done: shown.done})
	shown.close()
	end()
	var records []spinup.Record
	for i, r := range results {
		if r.Of == i {
			records = append(records, r.Record)
		}
	}
	err = errors.Join(a.showPulls(records, local.Rules, o.quiet), a.failedPulls(results))
	a.keep(ctx, local.recorder, records)
	return err
}

// showPulls prints the pulls.
func (a *app) showPulls(records []spinup.Record, rules spinup.Rules, quiet bool) error {
	list := make([]api.JudgedSpinup, 0, len(records))
	for _, r := range records {
		list = append(list, api.JudgedSpinup{Record: r, Slow: slowPhases(r, rules)})
	}
	return a.ui.result(list, func(w io.Writer) {
		for _, one := range list {
			switch {
			case one.Outcome != spinup.OK:
			case quiet:
				fmt.Fprintln(w, clean(puller.FullName(one.Image)))
			default:
				prefix := ""
				if len(list) > 1 {
					prefix = clean(one.Image) + ": "
				}
				for _, line := range pullLines(one.Record, rules) {
					fmt.Fprintln(w, prefix+line)
				}
			}
		}
	})
}

// slowPhases returns the slow phases for JSON, which shows none as an empty array.
func slowPhases(r spinup.Record, rules spinup.Rules) []spinup.Phase {
	return append([]spinup.Phase{}, rules.Slow(r)...)
}

// pullLines returns the last lines of docker pull, which scripts search for, and the pull's
// figures in one line with its slow phases.
func pullLines(r spinup.Record, rules spinup.Rules) []string {
	var lines []string
	if r.Digest != "" {
		lines = append(lines, "Digest: "+r.Digest)
	}
	status := "Downloaded newer image for"
	if r.Pull.Cached {
		status = "Image is up to date for"
	}
	lines = append(lines, fmt.Sprintf("Status: %s %s", status, clean(r.Image)))
	line := strings.Join(r.Lines(), ", ")
	for _, v := range rules.Judge(r) {
		if v.Slow {
			line += fmt.Sprintf(" [slow %s: %.2f, the rule is %g MiB/s]", v.Phase, v.Value, v.Limit)
		}
	}
	return append(lines, line)
}

// failedPulls prints all errors but the last, which it returns. An interrupted command
// has one error.
func (a *app) failedPulls(results []puller.Result) error {
	var failed []error
	for i, r := range results {
		switch {
		case r.Err == nil || r.Of != i:
		case errors.Is(r.Err, context.Canceled):
			return &exitError{err: r.Err, code: causeCode(r.Err)}
		default:
			failed = append(failed, &exitError{err: r.Err, code: causeCode(r.Err)})
		}
	}
	if len(failed) == 0 {
		return nil
	}
	for _, err := range failed[:len(failed)-1] {
		a.ui.fail(err)
	}
	return failed[len(failed)-1]
}
