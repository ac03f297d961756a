// Line is the WebSocket to the shell: what is said on it, and what the page is
// told of its ups and downs. reconnect.js brings it back.
import { reconnecting } from "./reconnect.js";

const chunk = 16 * 1024; // bytes in a message, under the server's limit

export class Line {
  ended = false; // the shell was left by exit: nothing to come back to unasked

  #on;
  #link = null;
  #open = false;
  #encoder = new TextEncoder();

  // on has the functions size, output, status, state and lost.
  constructor(on) {
    this.#on = on;
  }

  // now connects, unless that has happened.
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

  // hurry ends a pause.
  hurry() {
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
    this.resize(); // it may have changed since
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
