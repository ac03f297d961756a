package api

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"time"
)

// answerWeighted answers a probe with the weight, or with err and the weight 0, also in the
// status line's reason phrase. HAProxy's agent check (agent-check in its configuration
// manual) reads the first line of an answer only, and takes each word that it knows from
// it, such as "73%". net/http has no reason phrases of a handler's own, so the connection
// is taken over, and closed.
func answerWeighted(w http.ResponseWriter, r *http.Request, weight int, err error) error {
	status, body := http.StatusOK, any(Health{Status: "ok", Weight: weight})
	header := w.Header()
	if err != nil {
		e := ErrorOf(err)
		status, body, weight = e.Code.Status(), ErrorBody{*e}, 0
		header.Set("Retry-After", retryAfter)
	}
	b, err := json.Marshal(body)
	if err != nil {
		return err
	}
	header.Set("Content-Type", mediaJSON)
	header.Set("Date", time.Now().UTC().Format(http.TimeFormat))
	conn, _, err := takeOver(w)
	if err != nil {
		return err
	}
	defer conn.Close()
	deadline(conn.SetWriteDeadline, bodyLimit)
	answer := http.Response{Status: fmt.Sprintf("%d %d%%", status, weight), StatusCode: status, ProtoMajor: 1, ProtoMinor: 1,
		Header: header, ContentLength: int64(len(b)), Body: io.NopCloser(bytes.NewReader(b)), Request: r, Close: true}
	_ = answer.Write(conn) // the prober may have disconnected
	return nil
}
