// Many items in requests of a fair size; an item that is refused does not keep the others from being scored.
import { ask, Refused } from "./api.js";

const MOST_ITEMS = 32;
const MOST_CHARACTERS = 200_000;

/** Entries of `itemsOf` in lists that make a request each. */
function* batches(entries) {
  let batch = [];
  let size = 0;
  for (const entry of entries) {
    if (batch.length && (batch.length === MOST_ITEMS || size + entry.size > MOST_CHARACTERS)) {
      yield batch;
      batch = [];
      size = 0;
    }
    batch.push(entry);
    size += entry.size;
  }
  if (batch.length) yield batch;
}

/**
 * Puts `result` or `error` into each entry with an `item`, batch by batch; `onAnswer(answer)` after each.
 *
 * Throws what is no single item's fault; entries that were not reached then have neither.
 */
export async function scoreAll(entries, { signal, onAnswer }) {
  for (const batch of batches(entries.filter((entry) => entry.item))) {
    let left = batch;
    while (left.length) {
      try {
        const body = JSON.stringify({ items: left.map((entry) => entry.item) });
        const answer = await ask("score", { body, signal });
        for (const result of answer.results) left[result.index].result = result;
        onAnswer(answer);
        break;
      } catch (error) {
        const bad = error instanceof Refused ? /^items\[(\d+)\]\.?(.*)/.exec(error.param ?? "") : null;
        if (bad === null) throw error;
        const entry = left[Number(bad[1])];
        // The place in this request says nothing to who wrote the lines.
        const message = error.message.replace(/^items\[\d+\](\.|: )/, "");
        entry.error = { message, code: error.code, param: bad[2] || null };
        left = left.filter((one) => one !== entry);
      }
    }
  }
}
