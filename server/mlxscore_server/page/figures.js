// The line that says what an answer is about and what it cost.
import { make } from "./dom.js";
import { duration } from "./numbers.js";

/** `usage`: as in the answer; `ms`: from asking to having read it; `more`: what else is to be said. */
export function figures({ model, usage, ms, more = [] }) {
  const all = [
    ["model", model],
    ...more,
    ["computed tokens", usage.computed_tokens.toLocaleString("en")],
    ["cached tokens", usage.cached_tokens.toLocaleString("en")],
    ["time", duration(ms)],
  ];
  return make(
    "dl",
    { class: "figures" },
    ...all.map(([name, value]) => make("div", {}, make("dt", {}, name), make("dd", {}, value))),
  );
}
