// Line is the WebSocket to the shell. It sends input, and it notifies the page of output and
// of changes of the connection's state. reconnect.js restores a lost connection.
import { reconnecting } from "./reconnect.js";

const chunk = 16 * 1024; // bytes in a message, under the server's limit

export class Line {
  ended = false; // the shell has exited: reconnect only on request

  #on;
  #link = null;
  #open = false;
  #encoder = new TextEncoder();

  // on has the functions size, output, status, state and lost.
  constructor(on) {
    this.#on = on;
  }

  // now connects, unless there is a connection.
  now() {
    this.ended = false;
    if (this.#link) this.#link.connect();
    else this.#link = reconnecting(() => this.#url(), {
      connecting: (tries) => this.#on.state("connecting", tries ? "Reconnecting…" : "Connecting…"),
      open: () => this.#opened(),
      message: (data) => {
        if (typeof data === "string") this.#on.status(JSON.parse(data));
        else this.#on.output(new Uint8Array(data));
      },
      lost: (e, pause) => this.#lost(e, pause),
      end: () => this.#end(),
    });
  }

  // retry ends the pause before the next try.
  retry() {
    if (!this.ended) this.now();
  }

  send(text) {
    this.sendBytes(this.#encoder.encode(text));
  }

  sendBytes(bytes) {
    for (let i = 0; i < bytes.length; i += chunk) this.#link?.send(bytes.subarray(i, i + chunk));
  }

  resize() {
    this.#link?.send(JSON.stringify(this.#on.size()));
  }

  #url() {
    const { rows, cols } = this.#on.size();
    const url = new URL(`ws?rows=${rows}&cols=${cols}`, location.href);
    url.protocol = url.protocol.replace("http", "ws");
    return url;
  }

  #opened() {
    this.#open = true;
    this.#on.state("open", "Connected");
    this.resize(); // the size may have changed since
  }

  #lost(e, pause) {
    const why = e.code === 1012 ? "The session is moving"
      : e.code === 1013 ? `The session is full: ${e.reason}`
      : this.#open ? "Connection lost" : "No connection";
    if (this.#open) this.#on.lost(`${why.toLowerCase()}; reconnecting`);
    this.#open = false;
    if (pause > 0) this.#on.state("lost", `${why}. Next try in ${Math.ceil(pause / 1000)} s`, "Try now");
  }

  #end() {
    this.#open = false;
    this.ended = true;
    this.#on.state("ended", "The shell has ended", "New shell");
    this.#on.lost("the shell has ended; press Enter for a new one");
  }
}
