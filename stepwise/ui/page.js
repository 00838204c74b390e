"use strict";
// Pages are complete without this script. It keeps them up to date, and adds keys: a page that
// changed is fetched again, and its parts with data-live replace those whose HTML differs.

const $ = (selector, root = document) => root.querySelector(selector);
const $$ = (selector, root = document) => [...root.querySelectorAll(selector)];
const live = (root = document) => new Map($$("[data-live]", root).map((e) => [e.dataset.live, e]));
const html = new Map([...live()].map(([name, e]) => [name, e.outerHTML])); // as the server sent it
const isField = (e) => e && /^(INPUT|TEXTAREA|SELECT)$/.test(e.tagName);

// -- what a reader did to the page, which a newer page keeps -------------------------------------

// What a form is about is in its hidden fields, so that a text for one question gets to no other.
const aboutOf = (form) => form && [
  form.getAttribute("action"), ...$$("input[type=hidden]", form).map((e) => `${e.name}=${e.value}`),
].join("&");
const isFold = (e) => e.tagName === "SUMMARY" || e.tagName === "DETAILS";
const keyOf = (e) => [
  e.tagName, aboutOf(isFold(e) ? $("form", e.closest("details")) : e.form), e.id, e.name,
  e.type === "checkbox" ? e.value : "", e.matches(".slider a") ? e.textContent : e.getAttribute("href"),
  isFold(e) ? e.textContent.slice(0, 80) : "",
].join("|");

function numbered(elements) {
  const seen = new Map();
  return elements.map((e) => {
    const key = keyOf(e), count = seen.get(key) ?? 0;
    seen.set(key, count + 1);
    return [`${key}#${count}`, e];
  });
}

// A form of which one field was filled keeps them all: a value goes to the name that it was typed for.
const isFilled = (e) => e.tagName === "SELECT" ? [...e.options].some((o) => o.selected !== o.defaultSelected)
  : e.value !== e.defaultValue || e.checked !== e.defaultChecked;
const isBegun = (form) => $$("input, textarea, select", form).some(isFilled);

function stateOf(root) {
  const fields = numbered($$("input, textarea, select", root)).filter(([, e]) => e.type !== "hidden" && e.type !== "range");
  const folds = numbered($$("details", root));
  const focused = numbered($$("a, button, input, textarea, select, summary", root))
    .find(([, e]) => e === document.activeElement);
  return {
    fields: new Map(fields.filter(([, e]) => isBegun(e.form ?? root)).map(([key, e]) => [key, e])),
    folds: new Map(folds.map(([key, e]) => [key, e.open])),
    focused: focused?.[0],
    chosen: isField(document.activeElement) ? [document.activeElement.selectionStart, document.activeElement.selectionEnd] : null,
  };
}

function restore(root, state) {
  for (const [key, e] of numbered($$("input, textarea, select", root))) {
    const old = state.fields.get(key);
    if (old) { e.value = old.value; e.checked = old.checked; }
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
async function fetched(address, signal) {
  const answer = await fetch(address, { headers: { Accept: "text/html" }, credentials: "same-origin", signal });
  const ok = answer.ok && !answer.redirected; // to a login, say
  const text = ok ? await answer.text() : "";
  const [all, rules] = text.match(/<style nonce="[^"]*">([^]*?)<\/style>/) ?? ["", ""];
  return { ok, status: answer.status, rules, page: new DOMParser().parseFromString(text.replace(all, ""), "text/html") };
}

const { classList } = document.body;
let source = null; // of events
let goal = null; // where a reader goes, until it is shown: what changes meanwhile is asked for there
let asking = null, again = false;
let held = false; // a newer page waits until the reader releases a button or key

async function show() {
  if (asking) { again = true; return; }
  asking = new AbortController();
  const address = goal ?? location.href, moved = goal !== null;
  try {
    const { ok, status, rules, page } = await fetched(address, asking.signal);
    if (ok) { apply(page, rules, address, moved); }
    else if (moved) { location.href = address; } // which says why
    else if (status === 404) { location.reload(); } // the run was deleted
    else { classList.add("offline"); }
  } catch (error) { if (error.name !== "AbortError") { classList.add("offline"); } } finally {
    asking = null;
    if (again) { again = false; show(); }
  }
}

function apply(page, rules, address, moved) {
  if (source?.readyState === EventSource.OPEN) { classList.remove("offline"); }
  if (goal !== null && !moved) { return; } // the reader moves, which is asked for next
  // An element that is replaced between a press and its release gets no click.
  held = Boolean($("[data-live]:active:not([data-live=slider])"));
  if (held) { return; }
  document.title = page.title;
  const style = $("style[nonce]");
  if (style.textContent !== rules) { style.textContent = rules; }
  for (const [name, theirs] of live(page)) {
    const ours = live().get(name);
    if (!ours || html.get(name) === theirs.outerHTML) { continue; }
    if (name === "slider" && (ours.matches(":active") || (moved && goal !== address))) { held = true; continue; } // it is ahead
    html.set(name, theirs.outerHTML);
    const state = stateOf(ours), node = document.importNode(theirs, true);
    ours.replaceWith(node);
    restore(node, state);
    if (name === "source") { toLine(); }
  }
  if (moved) { history.replaceState(null, "", address); }
  if (goal === address) { goal = null; }
  enliven();
}

for (const released of ["pointerup", "pointercancel", "keyup"]) {
  addEventListener(released, () => { if (held) { show(); } });
}

const events = document.body.dataset.events;
let left = 0; // when a form was sent, whose answer is the next page
if (events) {
  // A browser has six connections to a server: a tab that nobody sees leaves its one to the others.
  // The first event after that is told for whatever happened meanwhile.
  const listen = () => {
    source?.close();
    if (document.hidden) { return; }
    source = new EventSource(events);
    source.addEventListener("changed", show);
    source.addEventListener("error", () => classList.add("offline"));
    source.addEventListener("open", () => classList.remove("offline"));
  };
  listen();
  document.addEventListener("visibilitychange", listen);
  addEventListener("pagehide", () => source?.close());
  setInterval(() => {
    if (document.hidden || Date.now() - left < 5000) { return; }
    if (source.readyState === EventSource.CLOSED) { listen(); } // a proxy refused, or no page came
    if (held || $("body.offline, .bar.started, .bar.running, .output.alive")) { show(); }
  }, 2000);
}

// A second click, before the next page has come, would send a message or make a fork twice.
const sent = new Map();
addEventListener("submit", (event) => {
  const form = event.target, about = aboutOf(form), now = Date.now();
  if (form.method === "dialog") { return; }
  if (form.method === "post" && now - (sent.get(about) ?? 0) < 5000) { event.preventDefault(); return; }
  sent.set(about, now);
  left = now;
  source?.close();
  again = false;
  asking?.abort(); // what is deleted now is not asked for
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
    const answer = await fetched(link.href).catch(() => ({ ok: false }));
    const value = answer.ok && $("[data-live=value]", answer.page);
    const now = $$("a.whole").find((e) => e.href === link.href); // its part may have been replaced
    if (!value) { location.href = link.href; }
    else if (now) { now.previousElementSibling.replaceWith(document.importNode(value, true)); now.remove(); }
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
    const range = $(".slider input[type=range]"), place = range?.value;
    if (!range || keys.open) { return; }
    const [rel, by] = event.key === "ArrowLeft" ? ["prev", -1] : ["next", 1];
    // The links leave out forgotten steps; they are those of the page that is shown.
    const link = place === range.defaultValue ? $(`.slider a[rel=${rel}]`) : null;
    range.value = link ? new URL(link.href).searchParams.get("step") : Number(place) + by;
    if (range.value !== place) { range.dispatchEvent(new Event("input", { bubbles: true })); }
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
