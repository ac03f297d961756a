// The page: a terminal, a header, and the connection that feeds both.
import { Terminal } from "./vendor/xterm.mjs";
import { FitAddon } from "./vendor/addon-fit.mjs";
import { Line } from "./line.js";

const find = (id) => document.getElementById(id);
const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const theme = () => ({
  background: css("--screen"),
  foreground: css("--ink"),
  cursor: css("--accent"),
  cursorAccent: css("--screen"),
  selectionBackground: css("--select"),
});

const terminal = new Terminal({
  fontFamily: 'ui-monospace, "DejaVu Sans Mono", Menlo, Consolas, monospace',
  fontSize: 14,
  cursorBlink: !matchMedia("(prefers-reduced-motion: reduce)").matches,
  minimumContrastRatio: 4.5, // the sixteen colours have to be readable on white, too
  scrollback: 5000,
  theme: theme(),
});
const fit = new FitAddon();
terminal.loadAddon(fit);
terminal.open(find("terminal"));
terminal.textarea.setAttribute("aria-label", "Terminal. Press F6 to leave it.");
fit.fit();
terminal.focus();

let shown = ""; // the container of the last output in the terminal

const line = new Line({
  size: () => ({ rows: terminal.rows, cols: terminal.cols }),
  output: (bytes) => terminal.write(bytes),
  status: (s) => {
    document.title = `${s.session} · session`;
    for (const id of ["session", "epoch", "host", "people"]) find(id).textContent = s[id];
    const now = `container ${s.host}, epoch ${s.epoch}`;
    if (shown && shown !== now) note(`now in ${now}`);
    shown = now;
  },
  state: (name, message, button) => {
    document.body.dataset.state = name;
    find("message").textContent = message;
    find("again").hidden = !button;
    find("again").textContent = button ?? "";
  },
  lost: (message) => note(message),
});

// note writes a message of the page into the terminal. It first resets the modes that the
// last program may have set.
function note(text) {
  // The sequence that leaves the alternate screen moves the cursor if that screen is not active.
  const leave = terminal.buffer.active.type === "alternate" ? "\x1b[?1049l" : "";
  terminal.write(`${leave}\x1b[?1000;1002;1003;2004l\x1b[?25h\x1b[0m\r\n\x1b[2m[${text}]\x1b[0m\r\n`);
}

terminal.onData((text) => {
  if (line.ended && text === "\r") line.now();
  else line.send(text);
});
terminal.onBinary((text) => line.sendBytes(Uint8Array.from(text, (c) => c.charCodeAt(0))));
terminal.onResize(() => line.resize());
new ResizeObserver(() => fit.fit()).observe(find("terminal"));
find("again").addEventListener("click", () => {
  line.now();
  terminal.focus();
});
addEventListener("online", () => line.retry());
document.addEventListener("visibilitychange", () => document.hidden || line.retry());
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
  terminal.options.theme = theme();
});

// F6 moves the focus in and out of the terminal without a mouse; Tab belongs to the shell.
terminal.attachCustomKeyEventHandler((e) => e.key !== "F6");
addEventListener("keydown", (e) => {
  if (e.key !== "F6") return;
  e.preventDefault();
  if (document.activeElement === terminal.textarea) find("reader").focus();
  else terminal.focus();
});

const reader = find("reader");
reader.checked = localStorage.getItem("reader") === "yes";
const read = () => { terminal.options.screenReaderMode = reader.checked; };
reader.addEventListener("change", () => {
  localStorage.setItem("reader", reader.checked ? "yes" : "no");
  read();
});
read();

const keys = {
  escape: "\x1b", tab: "\t", interrupt: "\x03", eof: "\x04",
  up: "\x1b[A", down: "\x1b[B", right: "\x1b[C", left: "\x1b[D",
};
find("keys").addEventListener("click", (e) => {
  const key = keys[e.target.dataset?.key];
  if (!key) return;
  terminal.input(key.length === 3 && terminal.modes.applicationCursorKeysMode ? key.replace("[", "O") : key);
  terminal.focus(); // otherwise the on-screen keyboard closes
});

line.now();
