// reconnecting opens a WebSocket and reopens it whenever it is lost, until the server
// closes it with 1000 or the caller calls close. It does not repeat messages: data that was
// in transit, or is sent without a connection, is lost.
//
// It calls url() before every try. on.message(data) is required. on.open(),
// on.connecting(tries), on.lost(event, pause in ms) and on.end() are optional.
export function reconnecting(url, on) {
  const first = 250, longest = 10_000; // ms between tries
  const steady = 5_000; // ms after which a connection counts as good
  let socket = null, timer = 0, tries = 0, wanted = true;
  function connect() {
    if (socket) return;
    clearTimeout(timer);
    wanted = true;
    on.connecting?.(tries);
    let opened = Infinity;
    socket = new WebSocket(url());
    socket.binaryType = "arraybuffer";
    socket.onopen = () => { opened = performance.now(); on.open?.(); };
    socket.onmessage = (e) => on.message(e.data);
    socket.onclose = (e) => {
      socket = null;
      if (performance.now() - opened > steady) tries = 0;
      if (e.code === 1000 || !wanted) { tries = 0; on.end?.(); return; }
      // 1012: the session will be served again soon, and the gateway parks the next try
      // until then. Any other loss may affect many clients at once, hence the random pause.
      const pause = e.code === 1012 && tries === 0 ? 0
        : Math.min(first * 2 ** tries, longest) * (0.5 + Math.random() / 2);
      tries++;
      timer = setTimeout(connect, pause);
      on.lost?.(e, pause);
    };
  }
  connect();
  return {
    connect, // connects now, unless there is a connection: for a button, or the event "online"
    send: (data) => socket?.readyState === WebSocket.OPEN && !socket.send(data),
    close() { wanted = false; clearTimeout(timer); socket?.close(1000); },
  };
}
