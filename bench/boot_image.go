package bench

import (
	"archive/tar"
	"encoding/json"
	"fmt"
	"io"

	"holdfast/test/lab"
)

// answer prints a session's identity as JSON: from the environment, or in a container that was
// warm before from the agent's file (docs/pools.md).
const answer = `#!/bin/sh
echo Content-Type: application/json
echo
if [ -n "$HOLDFAST_SESSION" ]; then
	echo "{\"session\":\"$HOLDFAST_SESSION\"}"
else
	cat /run/holdfast/session.json
fi
`

// bootPath is the path of answer on a session's server.
const bootPath = "cgi-bin/session"

// sessionImage is the image of the sessions: busybox, whose server starts within about a
// millisecond, so that a boot's time is the engine's and Holdfast's.
func sessionImage() (lab.Image, error) {
	img, err := lab.Busybox()
	img.Ref = bootImage
	img.Command = []string{"/bin/httpd", "-f", "-p", fmt.Sprint(bootPort), "-h", "/www"}
	img.More = func(w *tar.Writer) error {
		if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: "www/" + bootPath, Mode: 0o755, Size: int64(len(answer))}); err != nil {
			return err
		}
		_, err := io.WriteString(w, answer)
		return err
	}
	return img, err
}

// sessionOf returns the session that an answer names.
func sessionOf(body io.Reader) (string, error) {
	var told struct {
		Session string `json:"session"`
	}
	err := json.NewDecoder(body).Decode(&told)
	return told.Session, err
}
