// Says whether the page is kept up to date. Everything else works without it.
"use strict";
(() => {
  const state = document.getElementById("live-state");
  const say = (text) => { if (state.textContent !== text) state.textContent = text; };
  document.addEventListener("htmx:sse:after:connection", () => say("Kept up to date by the server."));
  document.addEventListener("htmx:sse:error", () => say("The server does not answer; what is shown is old. Trying again."));
  document.addEventListener("htmx:sse:close", () => say("No longer kept up to date. Load the page again."));
})();
