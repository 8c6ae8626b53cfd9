// Numbers as people read them. Logprobs are nats, surprisal is bits.

export const bits = (logprob) => -logprob / Math.LN2 || 0;

export const fixed = (value, digits) => value.toFixed(digits).replace("-", "−");

/** A probability: percent, and powers of ten where that would be all zeros. */
export function percent(probability) {
  const value = probability * 100;
  if (value >= 9.95) return `${value.toFixed(1)}%`;
  if (value >= 0.0095) return `${value.toPrecision(2)}%`;
  if (probability === 0) return "0%";
  const [mantissa, exponent] = probability.toExponential(1).split("e-");
  return `${mantissa}×10${[...exponent].map((digit) => "⁰¹²³⁴⁵⁶⁷⁸⁹"[digit]).join("")}`.replace("×10", "·10⁻");
}

export const count = (value, noun) => `${value.toLocaleString("en")} ${noun}${value === 1 ? "" : "s"}`;

/** A duration in milliseconds. */
export const duration = (ms) => (ms < 9950 ? `${Math.round(ms)} ms` : `${(ms / 1000).toFixed(1)} s`);
