// What the model thought of one token, and what it would rather have read.
import { make } from "./dom.js";
import { mark, marked } from "./marks.js";
import { bits, fixed, percent } from "./numbers.js";
import { hex } from "./pieces.js";

/** A panel with `show(token, piece)`. */
export function detail() {
  const panel = make("aside", { class: "detail", "aria-label": "Selected token" });
  const show = (token, piece) => {
    const figures = [
      ["surprisal", `${fixed(bits(token.logprob), 2)} bits`],
      ["probability", percent(Math.exp(token.logprob))],
      ["rank", token.rank.toLocaleString("en")],
      ["logprob", `${fixed(token.logprob, 4)} nats`],
      ["token id", String(token.id)],
      ["bytes", token.bytes.map(hex).join(" ")],
    ];
    panel.replaceChildren(
      make("h2", {}, ...titleOf(token, piece)),
      make("dl", {}, ...figures.map(([name, value]) => make("div", {}, make("dt", {}, name), make("dd", {}, value)))),
      ...alternativesOf(token),
    );
  };
  return { panel, show };
}

function titleOf(token, piece) {
  const text = make("bdi", { class: "quoted" }, ...textOf(token));
  return piece.whole === null ? [text] : [text, " of ", make("bdi", { class: "quoted" }, piece.whole)];
}

/** With all marks; as bytes where it is a part of a character. */
function textOf(token) {
  return token.text.includes("\ufffd") ? [mark(token.bytes.map(hex).join(" "), "byte")] : marked(token.text);
}

function alternativesOf(token) {
  if (!token.top?.length) return [];
  const own = token.top.some((one) => one.id === token.id);
  const rows = token.top.map((one, index) => alternativeOf(one, index + 1, one.id === token.id));
  if (!own) rows.push(alternativeOf(token, token.rank, true));
  return [make("h3", {}, "Most likely here"), make("ol", { class: "bars" }, ...rows)];
}

function alternativeOf(one, rank, own) {
  const probability = Math.exp(one.logprob);
  return make(
    "li",
    { class: own ? "own" : null },
    make("span", { class: "rank" }, rank.toLocaleString("en")),
    make("bdi", { class: "quoted" }, ...textOf(one)),
    bar(probability),
    make("span", { class: "value" }, percent(probability), own ? make("span", { class: "unseen" }, ", this token") : ""),
  );
}

/** A bar for a share between 0 and 1. */
export function bar(share) {
  const fill = make("span");
  fill.style.width = `${share * 100}%`;
  return make("span", { class: "bar", "aria-hidden": "true" }, fill);
}
