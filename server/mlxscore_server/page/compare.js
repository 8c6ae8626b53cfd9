// The second mode: what may follow one context, the likeliest first.
import { address, ask } from "./api.js";
import { addContinuation, continuationFields, setContinuations } from "./continuations.js";
import { copyButton } from "./copying.js";
import { bar, detail } from "./detail.js";
import { byId, make, say } from "./dom.js";
import { figures } from "./figures.js";
import { heat } from "./heat.js";
import { keepLink, linkTo } from "./link.js";
import { alternatives } from "./model.js";
import { count, fixed, percent } from "./numbers.js";
import { runs } from "./run.js";
import { legend } from "./scale.js";
import { curl, literal, python } from "./snippets.js";

const context = byId("compare-context");

const bodyOf = (input, top) => ({ items: [input], return_tokens: true, top_logprobs: top });

async function score(signal, result) {
  const input = { context: context.value, continuations: continuationFields().map((field) => field.value) };
  const top = await alternatives();
  const started = performance.now();
  const answer = await ask("score", { body: JSON.stringify(bodyOf(input, top)), signal });
  const ms = performance.now() - started;
  const { panel, show } = detail();
  const rows = await rowsOf(answer.results[0].scores, input, show, signal);
  result.replaceChildren(
    make(
      "div",
      {},
      make("div", { class: "map" }, legend(), make("ol", { class: "compared" }, ...rows)),
      figures({ model: answer.model, usage: answer.usage, ms }),
      copies(input, top),
    ),
    panel,
  );
  result.hidden = false;
  keepLink(input);
  say(`Likeliest: ${rows[0].dataset.text}`);
}

async function rowsOf(scores, input, show, signal) {
  const sorted = [...scores].sort((a, b) => b.loglikelihood - a.loglikelihood);
  // Shares of those given: what they are together is 1.
  const relative = sorted.map((one) => Math.exp(one.loglikelihood - sorted[0].loglikelihood));
  const total = relative.reduce((sum, one) => sum + one, 0);
  const rows = [];
  for (const [place, one] of sorted.entries()) {
    const text = input.continuations[one.index];
    const label = `Tokens of continuation ${one.index + 1}`;
    const tokens = await heat(one.tokens, { label, onSelect: show, signal, select: place === 0 });
    rows.push(rowOf(one, text, tokens, relative[place] / total));
  }
  return rows;
}

function rowOf(score, text, tokens, share) {
  const facts = [
    `p ${percent(Math.exp(score.loglikelihood))}`,
    `${fixed(score.loglikelihood, 3)} nats`,
    count(score.num_tokens, "token"),
  ];
  if (score.is_greedy) facts.push("the model’s own choice");
  if (score.merged_boundary) facts.push("its first token begins in the context");
  return make(
    "li",
    { "data-text": text, "data-loglikelihood": score.loglikelihood, "data-share": share },
    tokens,
    make("span", { class: "share" }, percent(share)),
    bar(share),
    make("p", { class: "facts" }, facts.join(" · ")),
  );
}

function copies(input, top) {
  const list = input.continuations.map(literal).join(", ");
  return make(
    "p",
    { class: "copies" },
    copyButton("Copy link", () => address(linkTo(input))),
    copyButton("Copy as curl", () => curl(bodyOf(input, top))),
    copyButton("Copy as Python", () =>
      python(
        `continuations = [${list}]`,
        `scores = client.score(${literal(input.context)}, continuations)`,
        "for score in sorted(scores, key=lambda score: -score.loglikelihood):",
        '    print(f"{score.loglikelihood:9.4f}  {continuations[score.index]!r}")',
      ),
    ),
  );
}

function fieldOf(param) {
  const number = /continuations\[(\d+)\]/.exec(param);
  return (number && continuationFields()[Number(number[1])]) || context;
}

const run = runs(byId("compare-form"), { name: "Compare", work: score, fieldOf });

byId("compare-add").addEventListener("click", () => addContinuation("").focus());
setContinuations(["", ""]);

/** Compares what came in a link. */
export function openComparison(input) {
  context.value = input.context;
  setContinuations(input.continuations.length ? input.continuations : [""]);
  if (input.continuations.length) run();
}
