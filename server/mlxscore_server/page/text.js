// The first mode: one text, each of its tokens.
import { address, ask } from "./api.js";
import { copyButton } from "./copying.js";
import { detail } from "./detail.js";
import { byId, make, say } from "./dom.js";
import { figures } from "./figures.js";
import { heat } from "./heat.js";
import { keepLink, linkTo } from "./link.js";
import { alternatives } from "./model.js";
import { bits, count, fixed } from "./numbers.js";
import { runs } from "./run.js";
import { legend } from "./scale.js";
import { curl, literal, python } from "./snippets.js";

const input = byId("text-input");

const bodyOf = (text, top) => ({ items: [{ text }], return_tokens: true, top_logprobs: top });

async function score(signal, result) {
  const text = input.value;
  const top = await alternatives();
  const started = performance.now();
  const answer = await ask("score", { body: JSON.stringify(bodyOf(text, top)), signal });
  const ms = performance.now() - started;
  const [found] = answer.results[0].scores;
  const { panel, show } = detail();
  const tokens = await heat(found.tokens, { label: "Tokens", onSelect: show, signal });
  const each = bits(found.loglikelihood) / found.num_tokens;
  const more = [
    ["tokens", found.num_tokens.toLocaleString("en")],
    ["mean", `${fixed(each, 2)} bits a token`],
    ["perplexity", found.token_perplexity === null ? "too large" : found.token_perplexity.toPrecision(4)],
    ["loglikelihood", `${fixed(found.loglikelihood, 2)} nats`],
  ];
  result.replaceChildren(
    make(
      "div",
      {},
      make("div", { class: "map" }, legend(), tokens),
      figures({ model: answer.model, usage: answer.usage, ms, more }),
      copies(text, top),
    ),
    panel,
  );
  result.hidden = false;
  keepLink({ text });
  say(`${count(found.num_tokens, "token")}, ${fixed(each, 1)} bits a token`);
}

function copies(text, top) {
  return make(
    "p",
    { class: "copies" },
    copyButton("Copy link", () => address(linkTo({ text }))),
    copyButton("Copy as curl", () => curl(bodyOf(text, top))),
    copyButton("Copy as Python", () =>
      python(
        `answer = client.score_items([{"text": ${literal(text)}}], top_logprobs=${top}, return_tokens=True)`,
        "for token in answer.results[0].scores[0].tokens or []:",
        '    print(f"{token.text!r:16} {token.logprob:9.4f}  rank {token.rank}")',
      ),
    ),
  );
}

const run = runs(byId("text-form"), { name: "Score", work: score, fieldOf: () => input });

/** Scores a text that came in a link. */
export function openText({ text }) {
  input.value = text;
  if (text) run();
}
