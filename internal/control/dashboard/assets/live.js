// Shows whether the page is kept up to date. Everything else works without this script.
"use strict";
(() => {
  const state = document.getElementById("live-state");
  const say = (text) => { if (state.textContent !== text) state.textContent = text; };
  document.addEventListener("htmx:sse:after:connection", () => say("Updated by the server."));
  document.addEventListener("htmx:sse:error", () => say("The server does not answer; this data is old. Trying again."));
  document.addEventListener("htmx:sse:close", () => say("No longer updated. Load the page again."));
})();
