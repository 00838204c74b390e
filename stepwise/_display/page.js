"use strict";
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
