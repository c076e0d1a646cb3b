// Keeps a live page up to date, and copies commands. Without it all pages and forms work; they are then as of their loading.
"use strict";
(() => {
  const byId = id => document.getElementById(id);
  const content = byId("content"), away = byId("away"), pulse = byId("pulse"), address = document.body.dataset.live;
  let source = null, heard = new Date();

  const trouble = text => { away.hidden = !text; away.textContent = text; if (pulse) pulse.hidden = !!text; };
  const asOf = () => ` Shown is what was read at ${heard.toISOString().slice(11, 19)} UTC; the page comes back by itself.`;

  // A reader's place stays: open details, what is scrolled, the focus, and a selection are theirs.
  function show(html) {
    if ("away" in document.body.dataset) { location.reload(); return; }
    heard = new Date();
    const selection = getSelection();
    if (!selection.isCollapsed && content.contains(selection.anchorNode)) return;
    const open = new Map([...content.querySelectorAll("details[id]")].map(one => [one.id, one.open]));
    const scrolled = scrollers().map(one => [one.scrollLeft, one.scrollTop]);
    const focused = document.activeElement, path = focused && content.contains(focused) ? place(focused) : null;
    content.innerHTML = html;
    content.querySelectorAll("details[id]").forEach(one => { if (open.has(one.id)) one.open = open.get(one.id); });
    scrollers().forEach((one, index) => one.scrollTo(...(scrolled[index] || [0, 0])));
    if (path) [...content.querySelectorAll("a, summary, [tabindex]")].find(one => place(one) === path)?.focus({preventScroll: true});
    trouble("");
  }
  const scrollers = () => [...content.querySelectorAll(".wide, details pre")];
  const place = one => scrollers().includes(one) ? `scroller ${scrollers().indexOf(one)}`
    : `${one.tagName} ${one.getAttribute("href") || one.closest("[id]").id} ${one.textContent}`;

  function connect() {
    if (source || document.hidden) return;
    source = new EventSource(address);
    source.addEventListener("content", event => show(event.data));
    source.addEventListener("away", event => trouble(event.data + "." + asOf()));
    source.addEventListener("ended", () => location.reload());
    source.onerror = () => {
      trouble("The console does not reply." + asOf());
      if (source && source.readyState === EventSource.CLOSED) { disconnect(); setTimeout(again, 2000); }
    };
  }
  function disconnect() { if (source) source.close(); source = null; }
  // Refused, not lost: the session has ended, or the console has been started again.
  const again = () => fetch(location.href, {redirect: "manual"}).then(() => location.reload(), () => setTimeout(again, 2000));

  if (address) {
    connect();
    document.addEventListener("visibilitychange", () => document.hidden ? disconnect() : connect());
  }

  async function copy(line) {
    const range = document.createRange();
    range.selectNodeContents(line);
    getSelection().removeAllRanges();
    getSelection().addRange(range);
    try { await navigator.clipboard.writeText(line.textContent); } catch { return; } // selected, for the keys of the system
    getSelection().removeAllRanges();
    line.classList.add("copied");
    setTimeout(() => line.classList.remove("copied"), 1500);
  }
  document.addEventListener("click", event => { const line = event.target.closest(".command"); if (line) copy(line); });
  document.addEventListener("keydown", event => {
    if ((event.key === "Enter" || event.key === " ") && event.target.classList.contains("command")) { event.preventDefault(); copy(event.target); }
  });
})();
