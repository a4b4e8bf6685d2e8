"use strict";
// Fetches this page again every few seconds and puts its parts in place; the form stays as it is.
const parser = new DOMParser();
const silent = document.getElementById("silent");
let answered = new Date();
async function refresh() {
  if (document.hidden) return;
  try {
    const reply = await fetch(location.href, { cache: "no-store", signal: AbortSignal.timeout(10000) });
    if (!reply.ok) throw new Error(reply.statusText);
    const fresh = parser.parseFromString(await reply.text(), "text/html");
    const parts = document.querySelectorAll("[data-live]");
    if (fresh.querySelectorAll("[data-live]").length !== parts.length) return location.reload();
    for (const part of parts) {
      const other = fresh.getElementById(part.id);
      if (other.innerHTML !== part.innerHTML) part.replaceChildren(...other.childNodes);
    }
    document.title = fresh.title;
    answered = new Date();
    silent.hidden = true;
  } catch (error) {
    silent.textContent = `No answer since ${answered.toLocaleTimeString()}: what is below is as old as that.`;
    silent.hidden = false;
  }
}
setInterval(refresh, 5000);
document.addEventListener("visibilitychange", refresh);
