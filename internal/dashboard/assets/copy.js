// Copies the command beside a button. Where a page may not do that, as without TLS
// beyond this host, the buttons stay hidden.
"use strict";
(() => {
  if (!navigator.clipboard) return;
  document.documentElement.classList.add("can-copy");
  const state = document.getElementById("live-state");
  document.addEventListener("click", async (e) => {
    const button = e.target.closest?.("[data-copy]");
    if (!button) return;
    let said = "Copied.";
    try {
      await navigator.clipboard.writeText(button.previousElementSibling.textContent);
    } catch {
      said = "The browser did not let it be copied.";
    }
    if (state) state.textContent = said;
  });
})();
