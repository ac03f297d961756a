// Line is the WebSocket to the shell, and its coming back when it is lost.
//
// A close with 1012 (service restart) says that the session is about to be
// served again: the next try goes out at once, and the gateway lets it wait.
// Anything else is tried again after a pause that doubles.

const firstPause = 250; // ms
const longestPause = 10_000; // ms
const steady = 5_000; // ms after which a connection counts as good
const chunk = 16 * 1024; // bytes in a message, under the server's limit

export class Line {
  ended = false; // the shell was left by exit: nothing to come back to unasked

  #on;
  #socket = null;
  #tries = 0; // failed since the last steady connection
  #timer = 0;
  #encoder = new TextEncoder();

  // on has the functions size, output, status, state and lost.
  constructor(on) {
    this.#on = on;
  }

  // now connects, unless that has happened.
  now() {
    if (this.#socket) return;
    clearTimeout(this.#timer);
    this.ended = false;
    this.#on.state("connecting", this.#tries ? "Reconnecting…" : "Connecting…");
    const { rows, cols } = this.#on.size();
    const url = new URL(`ws?rows=${rows}&cols=${cols}`, location.href);
    url.protocol = url.protocol.replace("http", "ws");
    const socket = new WebSocket(url);
    socket.binaryType = "arraybuffer";
    let opened = 0;
    socket.onopen = () => {
      opened = performance.now();
      this.#on.state("open", "Connected");
      this.resize(); // it may have changed since
    };
    socket.onmessage = ({ data }) => {
      if (typeof data === "string") this.#on.status(JSON.parse(data));
      else this.#on.output(new Uint8Array(data));
    };
    socket.onclose = (e) => this.#closed(e, opened);
    this.#socket = socket;
  }

  // hurry ends a pause.
  hurry() {
    if (!this.ended) this.now();
  }

  send(text) {
    this.sendBytes(this.#encoder.encode(text));
  }

  sendBytes(bytes) {
    for (let i = 0; i < bytes.length; i += chunk) this.#post(bytes.subarray(i, i + chunk));
  }

  resize() {
    this.#post(JSON.stringify(this.#on.size()));
  }

  #post(message) {
    if (this.#socket?.readyState === WebSocket.OPEN) this.#socket.send(message);
  }

  #closed(e, opened) {
    this.#socket = null;
    if (opened && performance.now() - opened > steady) this.#tries = 0;
    if (e.code === 1000) {
      this.ended = true;
      this.#tries = 0;
      this.#on.state("ended", "The shell has ended", "New shell");
      this.#on.lost("the shell has ended; press Enter for a new one");
      return;
    }
    const why = e.code === 1012 ? "The session is moving"
      : e.code === 1013 ? `The session is full: ${e.reason}`
      : opened ? "Connection lost" : "No connection";
    if (opened) this.#on.lost(`${why.toLowerCase()}; reconnecting`);
    if (e.code === 1012 && this.#tries === 0) {
      this.#tries = 1;
      this.now();
      return;
    }
    const pause = Math.min(firstPause * 2 ** this.#tries, longestPause) * (0.75 + Math.random() / 2);
    this.#tries++;
    const seconds = Math.ceil(pause / 1000);
    this.#on.state("lost", `${why}. Next try in ${seconds} s`, "Try now");
    this.#timer = setTimeout(() => this.now(), pause);
  }
}
