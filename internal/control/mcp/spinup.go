package mcp

import (
	"context"
	"time"

	"holdfast/internal/control/api/client"
	"holdfast/internal/hosts/spinup"
)

// statsLimit is the agent's own limit for statistics.
const statsLimit = time.Minute

// spinUp is one spin-up of this host.
type spinUp struct {
	ID      string             `json:"id"`
	Kind    string             `json:"kind"`
	Job     string             `json:"job,omitempty" jsonschema:"the session's key, or the run's id"`
	Image   string             `json:"image"`
	Begun   string             `json:"begun"`
	Millis  float64            `json:"took_ms"`
	Outcome string             `json:"outcome"`
	Failed  string             `json:"failed_in,omitempty" jsonschema:"phase"`
	Error   string             `json:"error,omitempty"`
	Slow    []string           `json:"slow,omitempty" jsonschema:"phases that the agent's rules call slow"`
	Times   map[string]float64 `json:"times_ms" jsonschema:"by phase"`
	Cached  bool               `json:"cached,omitempty" jsonschema:"the image was on the host"`
}

type spinupQuery struct {
	Slow    bool   `json:"slow,omitempty" jsonschema:"only those with a slow phase"`
	Hours   int    `json:"hours,omitempty" jsonschema:"only those of the last hours"`
	Kind    string `json:"kind,omitempty" jsonschema:"only of this kind"`
	Image   string `json:"image,omitempty" jsonschema:"only of this image; without a tag: of any"`
	Job     string `json:"job,omitempty" jsonschema:"only of this session or run"`
	Outcome string `json:"outcome,omitempty" jsonschema:"only with this outcome"`
	Limit   int    `json:"limit,omitempty" jsonschema:"at most that many, the newest"`
}

func (q spinupQuery) filter() spinup.Filter {
	f := spinup.Filter{Since: time.Now().Add(-time.Duration(q.Hours) * time.Hour), Kind: spinup.Kind(q.Kind), Image: q.Image, Job: q.Job, Outcome: spinup.Outcome(q.Outcome), Limit: q.Limit}
	if q.Slow {
		f.Slow = &spinup.Rules{} // the agent's own rules count
	}
	return f
}

type spinupList struct {
	Spinups []spinUp `json:"spinups"`
}

func spinups(ctx context.Context, c *client.Client, q spinupQuery) (list spinupList, err error) {
	all, err := c.Spinups(ctx, q.filter())
	list.Spinups = make([]spinUp, 0, len(all))
	for _, r := range all {
		one := spinUp{ID: r.ID, Kind: string(r.Kind), Job: clip(r.Job, maxName), Image: clip(r.Image, maxName), Begun: stamp(r.Begun), Millis: millis(r.Took), Outcome: string(r.Outcome),
			Failed: string(r.Failed), Error: clip(r.Error, maxError), Times: map[string]float64{}, Cached: r.Pull != nil && r.Pull.Cached}
		for phase, took := range r.Times {
			one.Times[string(phase)] = millis(took)
		}
		for _, phase := range r.Slow {
			one.Slow = append(one.Slow, string(phase))
		}
		list.Spinups = append(list.Spinups, one)
	}
	return list, err
}

type statsQuery struct {
	Hours int    `json:"hours,omitempty" jsonschema:"only spin-ups of the last hours"`
	Kind  string `json:"kind,omitempty" jsonschema:"only of this kind"`
	Image string `json:"image,omitempty" jsonschema:"only of this image; without a tag: of any"`
	By    string `json:"by,omitempty" jsonschema:"what makes a group; absent: one group of all"`
	Fleet bool   `json:"fleet,omitempty" jsonschema:"of all nodes of the fleet and not of this host only"`
	Limit int    `json:"limit,omitempty" jsonschema:"at most that many groups, the largest"`
}

// phase are the figures of one phase. A rate is in MiB/s and slow at its low end.
type phase struct {
	Phase  string  `json:"phase"`
	Unit   string  `json:"unit"`
	Judged int     `json:"judged"`
	Slow   int     `json:"slow"`
	Median float64 `json:"median"`
	Tail   float64 `json:"slow_tail" jsonschema:"1 in 10 is slower"`
}

type spinupGroup struct {
	Name   string   `json:"name"`
	Count  int      `json:"count"`
	Failed int      `json:"failed"`
	Cached int      `json:"cached"`
	Phases []phase  `json:"phases"`
	Worse  []string `json:"worse,omitempty" jsonschema:"phases that are worse than those of the first group, and chance does not explain it"`
	Better []string `json:"better,omitempty" jsonschema:"likewise better"`
}

type stats struct {
	Count    int           `json:"count"`
	Groups   []spinupGroup `json:"groups"`
	Omitted  int           `json:"omitted,omitempty" jsonschema:"smaller groups"`
	NoAnswer []string      `json:"no_answer,omitempty" jsonschema:"nodes that did not answer"`
}

func spinupStats(ctx context.Context, c *client.Client, q statsQuery) (stats, error) {
	question := spinup.Question{Filter: spinupQuery{Hours: q.Hours, Kind: q.Kind, Image: q.Image}.filter(), By: spinup.By(q.By)}
	if !q.Fleet {
		r, err := c.SpinupReport(ctx, question)
		return statsOf(r, q.Limit), err
	}
	r, err := c.FleetSpinupReport(ctx, question)
	s := statsOf(r.Report, q.Limit)
	silent, _ := first(r.NoAnswer, 20)
	for _, n := range silent {
		s.NoAnswer = append(s.NoAnswer, clip(string(n.Node)+": "+n.Why, maxName))
	}
	return s, err
}

func statsOf(r spinup.Report, limit int) stats {
	groups, omitted := first(r.Groups, limit)
	s := stats{Count: r.Count, Groups: make([]spinupGroup, 0, len(groups)), Omitted: omitted + r.LeftOut}
	for _, g := range groups {
		one := spinupGroup{Name: clip(g.Name, maxName), Count: g.Count, Failed: g.Failed, Cached: g.Cached, Phases: make([]phase, 0, len(g.Phases))}
		for _, p := range g.Phases {
			row := phase{Phase: string(p.Phase), Unit: "s", Judged: p.Judged, Slow: p.Slow, Median: rounded(p.P50), Tail: rounded(p.P90)}
			if p.Phase.IsRate() {
				row.Unit, row.Tail = "MiB/s", rounded(p.P10)
			}
			one.Phases = append(one.Phases, row)
		}
		for _, other := range r.Compared {
			if other.B == g.Name {
				one.Worse, one.Better = changes(other.Phases)
			}
		}
		s.Groups = append(s.Groups, one)
	}
	return s
}

func changes(all []spinup.Difference) (worse, better []string) {
	for _, d := range all {
		switch {
		case d.SlowChange == spinup.Worse || d.MedianChange == spinup.Worse:
			worse = append(worse, string(d.Phase))
		case d.SlowChange == spinup.Better || d.MedianChange == spinup.Better:
			better = append(better, string(d.Phase))
		}
	}
	return worse, better
}

func spinupTools() []tool {
	hours := between(1, 24*366, 24)
	return []tool{
		define(about{name: "spinup_list", title: "List spin-ups", text: "List spin-ups (pull, create and start of a container) of this host, the newest first, with the time of each phase. slow=true lists slow ones.",
			kind: reads, limit: askLimit, bounds: map[string]bound{"hours": hours, "limit": between(1, 100, 20), "kind": oneOf(spinup.Kinds()...), "outcome": oneOf(spinup.Outcomes()...), "image": upTo(300), "job": upTo(200)}}, spinups),
		define(about{name: "spinup_stats", title: "Spin-up statistics", text: "How often each phase of spin-ups was slow, in groups that are compared with the largest one.",
			kind: reads, limit: statsLimit, bounds: map[string]bound{"hours": hours, "limit": between(1, 50, 10), "kind": oneOf(spinup.Kinds()...), "by": oneOf(spinup.Groupings()...), "image": upTo(300)}}, spinupStats),
	}
}
