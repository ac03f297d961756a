package api

import (
	"errors"
	"io"
	"net/http"
	"os"
	"time"
)

// progressLimit is how long a transfer of a file may make no progress.
const progressLimit = time.Minute

// paced returns a writer and a request whose transfers end if the caller neither sends nor
// reads for progressLimit. There is no limit for the whole transfer.
func paced(w http.ResponseWriter, r *http.Request) (http.ResponseWriter, *http.Request) {
	rc := http.NewResponseController(w)
	r = r.WithContext(r.Context())
	if r.Body != nil && r.Body != http.NoBody {
		r.Body = &pacedBody{r.Body, rc}
	}
	return &pacedWriter{w, rc}, r
}

type pacedBody struct {
	io.ReadCloser
	rc *http.ResponseController
}

func (b *pacedBody) Read(p []byte) (int, error) {
	deadline(b.rc.SetReadDeadline, progressLimit)
	n, err := b.ReadCloser.Read(p)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		err = &Error{Code: CodeTimeout, Message: "no part of the body arrived for " + progressLimit.String()}
	}
	return n, err
}

type pacedWriter struct {
	http.ResponseWriter
	rc *http.ResponseController
}

func (w *pacedWriter) Write(p []byte) (int, error) {
	deadline(w.rc.SetWriteDeadline, progressLimit)
	return w.ResponseWriter.Write(p)
}

// Unwrap is for http.ResponseController.
func (w *pacedWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }
