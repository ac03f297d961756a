// Copies the command beside a button. If the browser does not allow that, as without
// TLS beyond loopback, the buttons stay hidden.
"use strict";
(() => {
  if (!navigator.clipboard) return;
  document.documentElement.classList.add("can-copy");
  const state = document.getElementById("live-state");
  // Shows a text at an element; a screen reader hears the status line.
  const say = (at, text) => {
    if (!at) return;
    const was = at.dataset.was ?? at.textContent;
    at.dataset.was = was;
    at.textContent = text;
    setTimeout(() => {
      if (at.textContent === text) at.textContent = was;
      delete at.dataset.was;
    }, 3000);
  };
  document.addEventListener("click", async (e) => {
    const button = e.target.closest?.("[data-copy]");
    if (!button) return;
    try {
      await navigator.clipboard.writeText(button.previousElementSibling.textContent);
      say(button, "Copied");
      say(state, "Copied.");
    } catch {
      say(state, "The browser refused to copy.");
    }
  });
})();
