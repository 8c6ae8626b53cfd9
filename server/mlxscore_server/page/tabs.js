// Which mode is shown.
import { byId } from "./dom.js";

const tabs = [...byId("tabs").children];

/** `mode`: "text", "compare" or "lines". */
export function showMode(mode) {
  for (const tab of tabs) {
    const on = tab.id === `tab-${mode}`;
    tab.setAttribute("aria-selected", String(on));
    tab.tabIndex = on ? 0 : -1;
    byId(tab.getAttribute("aria-controls")).hidden = !on;
  }
}

for (const [index, tab] of tabs.entries()) {
  const modeOf = (which) => which.id.replace("tab-", "");
  tab.addEventListener("click", () => showMode(modeOf(tab)));
  tab.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    event.preventDefault();
    const next = tabs[(index + step + tabs.length) % tabs.length];
    showMode(modeOf(next));
    next.focus();
  });
}
