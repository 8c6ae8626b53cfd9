// The page: what is in its address is opened, also when that changes.
import { openComparison } from "./compare.js";
import { readLink } from "./link.js";
import "./lines.js";
import { showMode } from "./tabs.js";
import { openText } from "./text.js";

function open() {
  const input = readLink(location.hash);
  if (input === null) return;
  if (input.text === undefined) {
    showMode("compare");
    openComparison(input);
  } else {
    showMode("text");
    openText(input);
  }
}

window.addEventListener("hashchange", open);
open();
