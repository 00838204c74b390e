"use strict";
// Pages are complete without this script. It keeps them up to date, and adds keys: a page that
// changed is fetched again, and its parts with data-live replace those whose HTML differs.

const $ = (selector, root = document) => root.querySelector(selector);
const $$ = (selector, root = document) => [...root.querySelectorAll(selector)];
const live = (root = document) => new Map($$("[data-live]", root).map((e) => [e.dataset.live, e]));
const html = new Map([...live()].map(([name, e]) => [name, e.outerHTML])); // as the server sent it
const isField = (e) => e && /^(INPUT|TEXTAREA|SELECT)$/.test(e.tagName);

// -- what a reader did to the page, which a newer page keeps -------------------------------------

const keyOf = (e) => [
  e.tagName, e.form?.getAttribute("action"), e.id, e.name, e.type === "checkbox" ? e.value : "",
  e.getAttribute("href"), e.tagName === "SUMMARY" || e.tagName === "DETAILS" ? e.textContent.slice(0, 80) : "",
].join("|");

function numbered(elements) {
  const seen = new Map();
  return elements.map((e) => {
    const key = keyOf(e), count = seen.get(key) ?? 0;
    seen.set(key, count + 1);
    return [`${key}#${count}`, e];
  });
}

function stateOf(root) {
  const fields = numbered($$("input, textarea, select", root));
  const folds = numbered($$("details", root));
  const focused = numbered($$("a, button, input, textarea, select, summary", root))
    .find(([, e]) => e === document.activeElement);
  return {
    fields: new Map(fields.filter(([, e]) => e.type !== "hidden" && e.type !== "range").map(([key, e]) => [key, [e.value, e.checked, e.defaultValue, e.defaultChecked]])),
    folds: new Map(folds.map(([key, e]) => [key, e.open])),
    focused: focused?.[0],
    chosen: isField(document.activeElement) ? [document.activeElement.selectionStart, document.activeElement.selectionEnd] : null,
  };
}

function restore(root, state) {
  for (const [key, e] of numbered($$("input, textarea, select", root))) {
    const [value, checked, before, checkedBefore] = state.fields.get(key) ?? [];
    if (value !== undefined && value !== before) { e.value = value; }
    if (checked !== undefined && checked !== checkedBefore) { e.checked = checked; }
  }
  for (const [key, e] of numbered($$("details", root))) {
    if (state.folds.has(key)) { e.open = state.folds.get(key); }
  }
  if (state.focused) {
    const found = numbered($$("a, button, input, textarea, select, summary", root))
      .find(([key]) => key === state.focused)?.[1];
    found?.focus({ preventScroll: true });
    if (found && state.chosen?.[0] != null && found.setSelectionRange) {
      try { found.setSelectionRange(...state.chosen); } catch { /* a number has no selection */ }
    }
  }
}

// -- a newer page --------------------------------------------------------------------------------

// The policy of this page refuses the style element of another one, even where it is only parsed.
async function fetched(address) {
  const answer = await fetch(address, { headers: { Accept: "text/html" }, credentials: "same-origin" });
  const text = answer.ok ? await answer.text() : "";
  const [all, rules] = text.match(/<style nonce="[^"]*">([^]*?)<\/style>/) ?? ["", ""];
  return { ok: answer.ok, rules, page: new DOMParser().parseFromString(text.replace(all, ""), "text/html") };
}

let goal = null; // where a reader goes, until it is shown: what changes meanwhile is asked for there
let asking = false, again = false;

async function show() {
  if (asking) { again = true; return; }
  asking = true;
  const address = goal ?? location.href, moved = goal !== null;
  try {
    const { ok, rules, page } = await fetched(address);
    if (!ok) { if (moved) { location.href = address; } return; }
    document.title = page.title;
    const style = $("style[nonce]");
    if (style.textContent !== rules) { style.textContent = rules; }
    for (const [name, theirs] of live(page)) {
      const ours = live().get(name);
      if (!ours || html.get(name) === theirs.outerHTML) { continue; }
      html.set(name, theirs.outerHTML);
      const state = stateOf(ours), node = document.importNode(theirs, true);
      ours.replaceWith(node);
      restore(node, state);
      if (name === "source") { toLine(); }
    }
    if (moved) { history.replaceState(null, "", address); }
    if (goal === address) { goal = null; }
    enliven();
  } catch { document.body.classList.add("offline"); } finally {
    asking = false;
    if (again) { again = false; show(); }
  }
}

const events = document.body.dataset.events;
if (events) {
  const { classList } = document.body;
  let source = null;
  // A browser has six connections to a server: a tab that nobody sees leaves its one to the others.
  // The first event after that is told for whatever happened meanwhile.
  const listen = () => {
    source?.close();
    if (document.hidden) { return; }
    source = new EventSource(events);
    source.addEventListener("changed", () => { classList.remove("offline"); show(); });
    source.addEventListener("error", () => classList.add("offline"));
    source.addEventListener("open", () => classList.remove("offline"));
  };
  listen();
  document.addEventListener("visibilitychange", listen);
  for (const leaving of ["submit", "pagehide"]) { addEventListener(leaving, () => source?.close()); }
  setInterval(() => { if ($(".bar.started, .bar.running, .output.alive") && !document.hidden) { show(); } }, 2000);
}

// A second click, before the next page has come, would send a message or make a fork twice.
addEventListener("submit", (event) => {
  const form = event.target, now = Date.now();
  if (form.method !== "post") { return; }
  if (now - (form.dataset.sent ?? 0) < 5000) { event.preventDefault(); }
  else { form.dataset.sent = now; }
});

// -- the slider ----------------------------------------------------------------------------------

function toLine() {
  const here = $(".source .here"), box = here?.closest(".source");
  if (box) { box.scrollTop = here.offsetTop - box.clientHeight / 2; }
}

function go(address) { goal = address; show(); }

document.addEventListener("input", (event) => {
  const range = event.target;
  if (range.type !== "range" || !range.form?.classList.contains("slider")) { return; }
  const address = new URL(range.form.action);
  address.searchParams.set("step", range.value);
  $("output", range.form).textContent = `step ${range.value} of ${range.max}`;
  go(address.href);
});

document.addEventListener("click", async (event) => {
  const link = event.target.closest("a");
  if (!link || event.ctrlKey || event.metaKey || event.shiftKey || event.button) { return; }
  if (link.matches(".slider a[href], a.step, a.bar, .source a") && $(".slider") &&
      link.pathname === location.pathname) {
    event.preventDefault();
    go(link.href);
  } else if (link.matches("a.whole")) {
    event.preventDefault();
    const value = $("[data-live=value]", (await fetched(link.href)).page);
    if (value) { link.previousElementSibling.replaceWith(document.importNode(value, true)); link.remove(); }
  }
});

// -- keys ----------------------------------------------------------------------------------------

let before = "";
document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) { return; }
  const typing = isField(event.target) && event.target.type !== "range" && event.target.type !== "checkbox";
  if (typing) { if (event.key === "Escape") { event.target.blur(); } return; }
  const keys = $("#keys"), nav = $$("nav a:not(.brand)");
  const last = before;
  before = event.key;
  if (event.key === "/") { const field = $("input[type=search]"); if (field) { field.focus(); field.select(); } else if (nav[0]) { location.href = nav[0].href; } }
  else if (event.key === "?") { if (keys.open) { keys.close(); } else { keys.showModal(); } }
  else if (last === "g" && "ris".includes(event.key)) { location.href = nav["ris".indexOf(event.key)].href; }
  else if ((event.key === "ArrowLeft" || event.key === "ArrowRight") && event.target.type !== "range") {
    const link = $(`.slider a[rel=${event.key === "ArrowLeft" ? "prev" : "next"}]`);
    if (!link || keys.open) { return; }
    go(link.href);
  } else { return; }
  event.preventDefault();
});

// -- fields --------------------------------------------------------------------------------------

function enliven() {
  for (const area of $$("textarea[data-value]:not([data-known])")) {
    area.dataset.known = "";
    area.addEventListener("focus", () => { if (!area.value) { area.value = area.dataset.value; } });
    area.addEventListener("blur", () => { if (area.value === area.dataset.value) { area.value = ""; } });
    area.form.addEventListener("submit", () => { if (area.value === area.dataset.value) { area.value = ""; } });
  }
}

document.body.classList.add("scripted");
enliven();
toLine();
