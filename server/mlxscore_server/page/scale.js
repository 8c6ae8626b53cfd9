// From surprisal to colour: a few steps, each darker (in the dark theme: lighter) than the one before.
import { make } from "./dom.js";
import { bits } from "./numbers.js";

/** Where the second and each further step begins, bits. */
const BOUNDS = [1, 2, 4, 6, 8, 11, 14];

/** The class of a token's colour. */
export function stepOf(logprob) {
  const surprisal = bits(logprob);
  let step = 0;
  while (step < BOUNDS.length && surprisal >= BOUNDS[step]) step += 1;
  return `step${step}`;
}

/** What the colours mean. */
export function legend() {
  const steps = [0, ...BOUNDS].map((from, step) => {
    const last = step === BOUNDS.length;
    const words = last ? `${from} bits and more` : `${from} to ${BOUNDS[step]} bits`;
    return make(
      "li",
      { class: `step${step}` },
      make("span", { "aria-hidden": "true" }, last ? `${from}+` : `${from}`),
      make("span", { class: "unseen" }, words),
    );
  });
  return make(
    "div",
    { class: "legend" },
    make("span", {}, "surprisal, bits"),
    make("ol", { "aria-label": "Colours: surprisal in bits" }, ...steps),
  );
}
