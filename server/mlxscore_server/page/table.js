// Scored items as a table: a row for each continuation.
import { make } from "./dom.js";
import { saidBy } from "./fault.js";
import { marked } from "./marks.js";
import { fixed } from "./numbers.js";

/** More rows are in the file only. */
const MOST_ROWS = 500;
const LONGEST = 80;

/** Elements, from entries that have a `result` or an `error`. */
export function table(entries) {
  const rows = entries.flatMap((entry) => (entry.error ? [faultOf(entry)] : scoresOf(entry)));
  const heads = ["line", "id", "text", "loglikelihood", "tokens", "greedy"].map((name) =>
    make("th", { scope: "col", class: ["line", "loglikelihood", "tokens"].includes(name) ? "number" : name }, name),
  );
  const made = make(
    "div",
    { class: "scroll", role: "region", "aria-label": "Scores", tabindex: "0" },
    make("table", {}, make("thead", {}, make("tr", {}, ...heads)), make("tbody", {}, ...rows.slice(0, MOST_ROWS))),
  );
  const left = rows.length - MOST_ROWS;
  return left > 0 ? [made, make("p", {}, `${left.toLocaleString("en")} more rows are in the download.`)] : [made];
}

function scoresOf({ line, item, result }) {
  return result.scores.map((score) => {
    const said = item.continuations?.[score.index] ?? item.continuation ?? item.text ?? item.ids;
    return make(
      "tr",
      { "data-loglikelihood": score.loglikelihood },
      make("td", { class: "number" }, String(line)),
      make("td", {}, short(result.id ?? "")),
      make("td", { class: "text" }, short(said)),
      make("td", { class: "number" }, fixed(score.loglikelihood, 4)),
      make("td", { class: "number" }, String(score.num_tokens)),
      make("td", {}, score.is_greedy ? "yes" : ""),
    );
  });
}

function faultOf({ line, item, error }) {
  return make(
    "tr",
    { class: "failed" },
    make("td", { class: "number" }, String(line)),
    make("td", {}, short(item?.id ?? "")),
    make("td", { colspan: "4" }, ...saidBy(error)),
  );
}

function short(value) {
  const text = typeof value === "string" ? value : JSON.stringify(value);
  const cut = [...text.slice(0, 2 * LONGEST)].slice(0, LONGEST).join("");
  return make("bdi", {}, ...marked(cut, { spaces: false }), cut.length < text.length ? " …" : "");
}
