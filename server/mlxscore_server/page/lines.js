// The third mode: many items as lines of JSON, to a table and a file.
import { copyButton } from "./copying.js";
import { byId, make, say } from "./dom.js";
import { figures } from "./figures.js";
import { itemsOf, linesOf } from "./jsonl.js";
import { count } from "./numbers.js";
import { runs } from "./run.js";
import { scoreAll } from "./batches.js";
import { curl, literal, python } from "./snippets.js";
import { table } from "./table.js";

const EXAMPLE = [
  { id: "capital", context: "The capital of France is", continuations: [" Paris", " London"] },
  { id: "chat", messages: [{ role: "user", content: "Is water wet?" }], continuations: ["Yes", "No"] },
  { id: "whole", text: "The river rises in the hills and comes to the sea." },
];
const input = byId("lines-input");

async function score(signal, result) {
  const entries = itemsOf(input.value);
  if (!entries.length) throw new Error("There is no line yet.");
  const usage = { computed_tokens: 0, cached_tokens: 0 };
  const progress = make("progress", { max: entries.length, value: 0, "aria-label": "Lines done" });
  result.replaceChildren(progress);
  result.hidden = false;
  const started = performance.now();
  let model = "";
  try {
    await scoreAll(entries, {
      signal,
      onAnswer: (answer) => {
        model = answer.model;
        usage.computed_tokens += answer.usage.computed_tokens;
        usage.cached_tokens += answer.usage.cached_tokens;
        progress.value = entries.filter((entry) => entry.result || entry.error).length;
      },
    });
  } finally {
    // What is there by now is shown in any case.
    show(result, entries, { model, usage, ms: performance.now() - started });
  }
}

function show(result, entries, { model, usage, ms }) {
  const done = entries.filter((entry) => entry.result || entry.error);
  const failed = done.filter((entry) => entry.error).length;
  const more = [["lines", `${count(done.length - failed, "line")} scored, ${failed} failed`]];
  if (done.length < entries.length) more.push(["left", `${entries.length - done.length} not reached`]);
  result.replaceChildren(
    ...table(done),
    figures({ model, usage, ms, more }),
    make("p", { class: "copies" }, download(done), ...copies(entries)),
  );
  say(more.map(([, value]) => value).join(", "));
}

function download(done) {
  const button = make("button", { type: "button", class: "quiet" }, "Download JSONL");
  button.addEventListener("click", () => {
    const url = URL.createObjectURL(new Blob([linesOf(done)], { type: "application/x-ndjson" }));
    make("a", { href: url, download: "scores.jsonl" }).click();
    URL.revokeObjectURL(url);
  });
  return button;
}

function copies(entries) {
  const items = entries.filter((entry) => entry.item).map((entry) => entry.item);
  if (!items.length) return [];
  return [
    copyButton("Copy as curl", () => curl({ items })),
    copyButton("Copy as Python", () =>
      python(
        `items = json.loads(${literal(JSON.stringify(items))})`,
        "for result in client.score_items(items).results:",
        "    print(result.index, [score.loglikelihood for score in result.scores])",
      ),
    ),
  ];
}

runs(byId("lines-form"), { name: "Score", work: score, fieldOf: () => input });

byId("lines-file").addEventListener("change", async (event) => {
  const [file] = event.target.files;
  if (file) input.value = await file.text();
});
byId("lines-example").addEventListener("click", () => {
  input.value = EXAMPLE.map((item) => JSON.stringify(item)).join("\n");
  input.focus();
});
