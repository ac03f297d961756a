package preempt

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"holdfast"
)

// Amazon's instance metadata service, version 2. EC2 user guide: "Use the
// Instance Metadata Service to access instance metadata" for the token, its
// headers and the status codes; "Spot Instance interruption notices" and "EC2
// instance rebalance recommendations" for the items and the interval of 5
// seconds. The service answers 404 for an item without content.
const (
	awsToken     = "/latest/api/token"
	awsAction    = "/latest/meta-data/spot/instance-action"
	awsRebalance = "/latest/meta-data/events/recommendations/rebalance"

	awsTokenHeader = "X-aws-ec2-metadata-token"
	awsTTLHeader   = "X-aws-ec2-metadata-token-ttl-seconds"
	awsTTL         = 6 * time.Hour // the maximum

	awsPoll = 5 * time.Second
)

// aws polls Amazon's metadata service.
type aws struct {
	endpoint string
	poll     time.Duration
	timeout  time.Duration // of one request
	now      func() time.Time

	token string    // of the next request for an item; "": none yet
	renew time.Time // when to request the next token
}

func newAWS(endpoint string) *aws {
	return &aws{endpoint: strings.TrimRight(endpoint, "/"), poll: awsPoll, timeout: 3 * time.Second, now: time.Now}
}

func (a *aws) Name() string { return "aws" }

func (a *aws) Run(ctx context.Context, report func(...Notice)) error {
	a.token = ""
	return repeat(ctx, a.poll, report, func() ([]Notice, error) { return a.notices(ctx) })
}

func (a *aws) notices(ctx context.Context) ([]Notice, error) {
	var now []Notice
	var action struct {
		Action string    `json:"action"` // terminate, stop or hibernate
		Time   time.Time `json:"time"`   // about two minutes ahead; hibernation begins at once
	}
	found, err := a.item(ctx, awsAction, &action)
	if err != nil {
		return nil, err
	}
	if found {
		if action.Action == "" || action.Time.IsZero() {
			return nil, fmt.Errorf("%s: no action or no time in it", awsAction)
		}
		now = append(now, Notice{
			Kind:     Terminate,
			Reason:   "spot/instance-action is " + action.Action,
			Deadline: action.Time,
			ID:       "instance-action " + action.Action + action.Time.Format(time.RFC3339),
		})
	}
	var rebalance struct {
		NoticeTime time.Time `json:"noticeTime"` // when the notice was issued, not a deadline
	}
	found, err = a.item(ctx, awsRebalance, &rebalance)
	if err != nil {
		return nil, err
	}
	if found {
		if rebalance.NoticeTime.IsZero() {
			return nil, fmt.Errorf("%s: no noticeTime in it", awsRebalance)
		}
		now = append(now, Notice{
			Kind:   Rebalance,
			Reason: "the instance is at elevated risk of interruption",
			ID:     "rebalance " + rebalance.NoticeTime.Format(time.RFC3339),
		})
	}
	return now, nil
}

// item reads an item as JSON into v. found is false if the item does not exist now.
func (a *aws) item(ctx context.Context, path string, v any) (found bool, err error) {
	got, err := a.get(ctx, path)
	if err == nil && got.status == http.StatusUnauthorized {
		// The token has expired, for example while the instance was suspended.
		a.token = ""
		got, err = a.get(ctx, path)
	}
	switch {
	case err != nil:
		return false, err
	case got.status == http.StatusNotFound:
		return false, nil
	case got.status != http.StatusOK:
		return false, fmt.Errorf("%s: status %d", path, got.status)
	}
	if err := json.Unmarshal(got.body, v); err != nil {
		return false, fmt.Errorf("%s: %w", path, err)
	}
	return true, nil
}

func (a *aws) get(ctx context.Context, path string) (answer, error) {
	if a.token == "" || !a.now().Before(a.renew) {
		if err := a.newToken(ctx); err != nil {
			return answer{}, err
		}
	}
	return call(ctx, a.timeout, http.MethodGet, a.endpoint+path, map[string]string{awsTokenHeader: a.token}, "")
}

// newToken requests a token and renews it after half of its lifetime.
func (a *aws) newToken(ctx context.Context) error {
	asked := a.now()
	got, err := call(ctx, a.timeout, http.MethodPut, a.endpoint+awsToken, map[string]string{awsTTLHeader: strconv.Itoa(int(awsTTL / time.Second))}, "")
	switch {
	case isTimeout(err):
		// The IP time-to-live of the answer is the instance's hop limit, which is
		// 1 by default (the same page).
		return holdfast.WithHint(fmt.Errorf("get a token: %w", err),
			"if this is an EC2 instance and the agent runs in a container, set the instance's HttpPutResponseHopLimit to 2")
	case err != nil:
		return fmt.Errorf("get a token: %w", err)
	case got.status != http.StatusOK:
		return fmt.Errorf("get a token: status %d", got.status)
	}
	ttl, err := strconv.Atoi(got.header.Get(awsTTLHeader))
	token := strings.TrimSpace(string(got.body))
	if err != nil || ttl < 1 || ttl > int(awsTTL/time.Second) || token == "" || len(token) > 1024 || strings.ContainsAny(token, " \r\n<") {
		return fmt.Errorf("get a token: the answer is not a token")
	}
	a.token, a.renew = token, asked.Add(time.Duration(ttl)*time.Second/2)
	return nil
}
