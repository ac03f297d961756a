// Command terminal is the terminal of a web IDE: a page with a shell in a session's
// container, over the agent's API. It is an example of a program outside this project.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"net/http"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/coder/websocket"

	"holdfast"
	"holdfast/client"
)

func main() {
	listen := flag.String("listen", "127.0.0.1:8090", "host:port; put a login in front of any other than loopback")
	socket := flag.String("socket", client.DefaultSocket, "the agent's socket; not used with $HOLDFAST_URL")
	page := flag.String("page", "demo/assets", "directory of the page")
	shell := flag.String("shell", "sh", "what each terminal runs")
	flag.Parse()
	agent, err := client.New(client.Options{Socket: *socket, URL: os.Getenv("HOLDFAST_URL"), Token: os.Getenv("HOLDFAST_TOKEN"), Program: "terminal"})
	if err != nil {
		log.Fatal(err)
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()
	files := http.FileServer(http.Dir(*page))
	mux := http.NewServeMux()
	mux.HandleFunc("GET /{key}/ws", func(w http.ResponseWriter, r *http.Request) {
		key, err := holdfast.ParseSessionKey(r.PathValue("key"))
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		c, err := websocket.Accept(w, r, nil) // it refuses pages of other sites
		if err != nil {
			return // Accept has answered
		}
		defer c.CloseNow()
		code, why := serve(ctx, agent, c, key, strings.Fields(*shell), r.URL.Query())
		_ = c.Close(code, why) // the browser may have left
	})
	mux.HandleFunc("GET /{key}/", func(w http.ResponseWriter, r *http.Request) {
		http.StripPrefix("/"+r.PathValue("key"), files).ServeHTTP(w, r)
	})
	server := &http.Server{Addr: *listen, Handler: mux}
	go func() {
		<-ctx.Done()
		_ = server.Close() // it ends the requests; the terminals end with ctx
	}()
	if err := server.ListenAndServe(); !errors.Is(err, http.ErrServerClosed) {
		log.Fatal(err)
	}
}

// serve runs a shell for one browser. Binary messages are the terminal's bytes, in both
// directions; a text message is the terminal's size, {"rows","cols"}. The session starts if
// it does not run. If the browser leaves, the shell gets the end of its input.
func serve(ctx context.Context, agent *client.Client, c *websocket.Conn, key holdfast.SessionKey, shell []string, q map[string][]string) (websocket.StatusCode, string) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if _, err := agent.StartSession(ctx, key, ""); err != nil {
		return websocket.StatusInternalError, reason(err)
	}
	typed, input := io.Pipe()
	sizes := make(chan client.Size)
	go func() {
		defer cancel()
		defer input.Close()
		for {
			kind, b, err := c.Read(ctx)
			if err != nil {
				return
			}
			if kind == websocket.MessageBinary {
				_, err = input.Write(b)
			} else {
				var s client.Size
				if err = json.Unmarshal(b, &s); err == nil {
					select {
					case sizes <- s:
					case <-ctx.Done():
					}
				}
			}
			if err != nil {
				return
			}
		}
	}()
	defer typed.Close()
	first := client.Size{Rows: 24, Cols: 80}
	if rows, cols := q["rows"], q["cols"]; len(rows) == 1 && len(cols) == 1 {
		_, _ = fmt.Sscan(rows[0]+" "+cols[0], &first.Rows, &first.Cols) // otherwise the usual size
	}
	code, err := agent.Exec(ctx, key, shell, client.Streams{Stdin: typed, Stdout: messages{ctx, c}, Terminal: &first, Resize: sizes})
	if err != nil {
		return websocket.StatusInternalError, reason(err)
	}
	return websocket.StatusNormalClosure, fmt.Sprintf("the shell has ended with exit code %d", code)
}

// messages writes each chunk as a binary message.
type messages struct {
	ctx context.Context
	c   *websocket.Conn
}

func (m messages) Write(p []byte) (int, error) {
	return len(p), m.c.Write(m.ctx, websocket.MessageBinary, p)
}

// reason is an error in a close frame, which has room for 123 bytes (RFC 6455, 5.5).
func reason(err error) string {
	text := err.Error()
	return strings.ToValidUTF8(text[:min(len(text), 120)], "")
}
