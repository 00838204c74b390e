"use strict";
const steps = [...document.querySelectorAll("details.step")];
const texts = steps.map((each) => each.textContent.toLowerCase());
const bar = document.querySelector(".filter");
if (bar) {
  const [words, status, count, button] = bar.children;
  const filter = () => {
    const wanted = words.value.toLowerCase().split(/\s+/);
    let shown = 0;
    steps.forEach((each, n) => {
      const fits = !status.value || each.classList.contains(`is-${status.value}`);
      each.hidden = !(fits && wanted.every((word) => texts[n].includes(word)));
      shown += !each.hidden;
    });
    count.textContent = shown < steps.length ? `${shown} of ${steps.length}` : "";
  };
  words.addEventListener("input", filter);
  status.addEventListener("change", filter);
  button.addEventListener("click", () => {
    const open = steps.some((each) => !each.hidden && !each.open);
    steps.forEach((each) => { each.open = open && !each.hidden; });
  });
  bar.hidden = false;
}
const unfold = () => {
  const target = location.hash && document.getElementById(location.hash.slice(1));
  for (let each = target; each; each = each.parentElement) {
    if (each.tagName === "DETAILS") { each.open = true; }
  }
  if (target) { target.scrollIntoView({ block: "nearest" }); }
};
addEventListener("hashchange", unfold);
unfold();
let folded = [];
addEventListener("beforeprint", () => {
  folded = [...document.querySelectorAll("details:not([open])")];
  folded.forEach((each) => { each.open = true; });
});
addEventListener("afterprint", () => folded.forEach((each) => { each.open = false; }));
